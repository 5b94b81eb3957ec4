"""FlashDecoding++'s softmax with a unified maximum: split_tensor_core.py without the running maximum.

    softmax(s)_j = exp(s_j - phi) / sum_i exp(s_i - phi)          for any phi

The running maximum only keeps exp from overflowing, and a constant does as well as long as no score is far above it and not all are far
below (Hong et al., arXiv 2311.01282, section 3). So phi is fixed beforehand, from statistics of a model; a tile's weights wait for no
exchange between lanes, and states are never rescaled. The guard: each block watches the largest exponent and its sums. Tiles that leave
the band in which weights keep their precision (split_fold.BANDS: narrow in float16, almost all of float32's range in bfloat16) are taken
again by the same block with the running maximum, in the same launch, so that a CUDA graph stays valid. A state says which maximum it
was made with, so parts of both kinds merge as they are, and the result is the same bit by bit from run to run.

The original recomputes whole rows, because its parts carry no maximum; here a part that fails costs only its own tiles.

FLOPs and bytes: those of split_tensor_core.py, and once more those of parts that leave the band. A decode step waits for memory, not for
arithmetic: what the unified maximum saves hides behind the loads.
"""

import functools

from minllm.kernels.attention.split_tensor_core import split_tensor_core

workspace_shapes = functools.partial(split_tensor_core.workspace_shapes, unified=True)


def attention(*arguments, phi=0.0, **options):
    """As split_tensor_core.attention. phi: what is subtracted from all scores scale * (q . k). Scores up to 62 above it are in the band in
    bfloat16, 10 in float16."""
    split_tensor_core.attention(*arguments, phi=phi, **options)
