"""A warp's walk over K: which codes and scales its lanes load from HBM, a chunk of steps at a time.

A step is 64 bytes of codes per row. A lane loads 16 of them in each of its two rows: adjacent ones, or, where several rows of x meet groups
that divide a step, 16 / groups bytes of each group. The four lanes of a row share the loads of scales: every load of a warp costs L1 one
cycle per row, however few bytes it takes.
"""

from typing import Any, NamedTuple

from numba import cuda, int32, int64, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.quantization.decoder import LANE_BYTES, ROW_BYTES, MmaDecoder

WORDS = 4  # words of codes of a lane per row and step
CODE_WORDS = 2 * WORDS


class Rows(NamedTuple):
    """What belongs to a lane's two rows of weight: their numbers, their codes' places, or what MmaDecoder.begin returned for them."""

    low: Any
    high: Any


def make_load_codes(tiling: TensorCoreGemvTiling, steps: int, pieces: int):
    """Return device functions (places, load): find a lane's codes in rows of this many steps, and load those of a step, in `pieces`."""
    splits, lane_bytes, piece_bytes, last, row_bytes = (
        tiling.splits,
        LANE_BYTES // pieces,
        ROW_BYTES // pieces,
        steps - 1,
        steps * ROW_BYTES,
    )
    is_padded = tiling.padded_steps(steps) != steps

    @cuda.jit(device=True, forceinline=True)
    def places(rows, first):
        """Return byte offsets of a lane's codes of step `first` in its rows; 64 bits, to which later steps add constants."""
        own = int32((int32(cuda.threadIdx.x) & 3) * lane_bytes + first * ROW_BYTES)
        return Rows(int64(rows.low) * row_bytes + int64(own), int64(rows.high) * row_bytes + int64(own))

    @cuda.jit(device=True, forceinline=True)
    def load_row(array, place, codes, at):
        if pieces == 1:
            codes[at], codes[at + 1], codes[at + 2], codes[at + 3] = ptx.load_128_streaming(array, place)
        elif pieces == 2:
            codes[at], codes[at + 1] = ptx.load_64_ordered(array, place)
            codes[at + 2], codes[at + 3] = ptx.load_64_ordered(array, place + piece_bytes)
        else:
            for piece in range(pieces):
                codes[at + piece] = ptx.load_32_ordered(array, place + piece * piece_bytes)

    @cuda.jit(device=True, forceinline=True)
    def load(u, array, places, first, codes):
        """codes[8 u : 8 u + 8] = the codes of the warp's u-th step from `first` on, in row low, then in row high.

        Past the last step of a row, that step's again.
        """
        further = u * splits * ROW_BYTES
        if is_padded:
            further = min(int32(further), int32((last - first) * ROW_BYTES))
        load_row(array, places.low + further, codes, u * CODE_WORDS)
        load_row(array, places.high + further, codes, u * CODE_WORDS + WORDS)

    return places, load


def make_load_scales(tiling: TensorCoreGemvTiling, decoder: MmaDecoder, steps: int, each: int, place_of):
    """Return the device function that loads the data of `each` groups per row; place_of(index, j): the step and group of the j-th.

    index: which of a lane's loads of a chunk it is.
    """
    splits, groups, words_of_a_group, last, load_group = (
        tiling.splits,
        decoder.groups,
        decoder.words,
        steps * decoder.groups - 1,
        decoder.load,
    )

    @cuda.jit(device=True, forceinline=True)
    def load_scales(index, weight, rows, kept, first, words):
        for j in range(each):
            step, group = place_of(index, j)
            number = min(uint32((uint32(first) + step * uint32(splits)) * uint32(groups) + group), uint32(last))
            at = 2 * (index * each + j) * words_of_a_group
            load_group(weight, rows.low, kept.low, number, words, at)
            load_group(weight, rows.high, kept.high, number, words, at + words_of_a_group)

    return load_scales
