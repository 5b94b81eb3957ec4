"""FlashDecoding++'s softmax: a unified maximum in place of a running maximum.

    softmax(s)_j = exp(s_j - phi) / sum_i exp(s_i - phi)          for any phi

The running maximum (online_softmax.py) rescales a state whenever a larger score appears, and first needs the largest score of a tile in
every lane: three exchanges between lanes. It only keeps exp from overflowing, and a constant serves as well while no score is far above it
and not all are far below (Hong et al., arXiv 2311.01282, section 3). So phi is fixed in advance, from statistics of a model; a tile's
weights wait for no exchange between lanes, and states are never rescaled. As a guard, each block tracks its largest exponent and its sums.
If its tiles leave the band in which weights keep their precision (BANDS: narrow in float16, almost all of float32's range in bfloat16), the
same block computes them again with the running maximum, in the same launch, so that a CUDA graph stays valid. Each state includes the
maximum it was computed with, so parts of both kinds can be merged, and the result is bitwise the same from run to run.

The original recomputes whole rows, because its parts carry no maximum; here a part that fails costs only its own tiles.

FLOPs and bytes: those of split_tensor_core.py, and once more those of parts that leave the band. A decode step is memory-bound: the time
that the unified maximum saves is hidden behind the loads (docs/results.md, rows split_unified_maximum).
"""

import functools

from numba import cuda, float32, int32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.tile import make_softmax
from minllm.kernels.attention.split_tensor_core.tile_loop import Softmax
from minllm.ptx import ex2

# (largest exponent to base 2 with which weights, their sums and P V stay far from overflow, smallest sum with which weights keep their
# precision). float16 represents 2**-24 to 2**16, bfloat16 about the range of float32.
BANDS = {"float16": (15.0, 2.0**-4), "bfloat16": (90.0, 2.0**-90)}


@functools.cache
def make_unified_softmax(sizes):
    """The Softmax with a unified maximum, and with a running maximum for tiles that have left the band."""
    columns, key_tiles, warps = sizes.columns, sizes.shape.keys // 16, sizes.shape.warps
    highest_exponent, smallest_sum = BANDS[sizes.dtype]
    running_softmax = make_softmax(sizes)

    @cuda.jit(device=True)
    def clear(state, phi, running):
        """Set the state to that of no keys, with phi as the maximum, or -inf for the running maximum."""
        running_softmax.clear(state, phi, running)
        if not running:
            for i in range(2 * columns):
                state.maxima[i] = phi
        state.highest[0] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def fold_unified(scores, state, scale):
        """Replace scores by weights and add them to sums; maxima do not change."""
        highest = state.highest[0]
        for column in range(columns):
            for i in range(2):
                for j in range(2 * key_tiles):
                    at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                    exponent = (scores[at] - state.maxima[2 * column + i]) * scale
                    highest = max(highest, exponent)
                    scores[at] = ex2(exponent)
                    state.sums[2 * column + i] += scores[at]
        state.highest[0] = highest

    @cuda.jit(device=True)
    def fold(scores, state, operands, running, scale, ring):
        """Fold with the running maximum if `running`, else with the unified one."""
        if running:
            running_softmax.fold(scores, state, operands, running, scale, ring)
        else:
            fold_unified(scores, state, scale)

    @cuda.jit(device=True)
    def failed(state, states, line_heads):
        """Whether this thread has found an exponent above the band, or the block's sum of its head is below it."""
        total = float32(1.0)
        if cuda.threadIdx.x < line_heads.left:
            total = float32(0.0)
            for warp in range(warps):
                total += states.sums[warp, cuda.threadIdx.x]
        return int32(1) if state.highest[0] > float32(highest_exponent) or total < float32(smallest_sum) else int32(0)

    return Softmax(clear, fold, running_softmax.share, failed)


workspace_shapes = functools.partial(decode_step.workspace_shapes, unified=True)


def attention(*arguments, phi=0.0, **options):
    """The same as split_tensor_core/decode_step.py. phi: subtracted from all scores scale * (q . k). Scores up to 62 above phi are in the
    band in bfloat16, up to 10 in float16."""
    decode_step.attention(*arguments, phi=phi, softmax=make_unified_softmax, **options)
