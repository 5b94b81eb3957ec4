"""Specimens of the kernels for a split vocabulary."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.kernels.split_vocabulary import argmax, join, lookup
from minllm.tiles.warp import WARP


def specimens():
    """All kernels; they are memory-bound."""
    ints, floats = array(INT32, 1), array(FLOAT32, 3)
    for dtype in FLOAT_DTYPES:
        matrix = array(dtype.name, 2)
        arguments = (ints, matrix, INT32, ints, matrix, INT32, matrix)
        yield Specimen(f"split_vocabulary/lookup/{dtype}", lookup.split_embedding_kernel, arguments, lookup.BLOCK, blocks=12)
    arguments = (floats, array(INT32, 3), ints, INT32, ints)
    yield Specimen("split_vocabulary/argmax_of_ranks", argmax.argmax_of_ranks_kernel, arguments, WARP, blocks=16)
    yield Specimen("split_vocabulary/join", join.join_parts_kernel, (floats, array(FLOAT32, 2)), join.BLOCK, blocks=6)
