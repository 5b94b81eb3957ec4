"""Move the keys and values of an accepted path of a draft tree to consecutive slots, in the order of the text.

The rows of a verification are written to consecutive slots, row f + j to that of node j. For a run with the path a_0 < a_1 < ..:

    cache[layer, slot of row f + i] ← cache[layer, slot of row a_i]          for i = 1, 2 ..

Since a_i ≥ f + i and the path ascends, no slot is written before it is read if i ascends. K and V of all layers lie in one array
(cache/kv_cache.py), so one launch moves all. At most twice the bytes of a token per accepted draft, and none for a path without gaps; no
FLOPs. Threads to data: a block moves up to 4 KB of each token of one run in one layer, 16 bytes per thread if tokens are whole vectors.
Source: Miao et al., "SpecInfer", ASPLOS 2024, section 4.
"""

import math

import numpy as np
from numba import cuda, int64, uint32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array, is_contiguous
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vectors_per_row
from minllm.ptx import store_128
from minllm.runtime.kernel import check, kernel, launch

THREADS = 256


def compact_path_reference(cache: np.ndarray, slot_mapping: np.ndarray, path: np.ndarray, counts: np.ndarray) -> None:
    """Move tokens of cache [layers, num_blocks, block_size, ...] in place.

    slot_mapping int32 [T]: the cache slot of each row; path int32 [R]: the row that yielded each new token; counts int32 [R]: the number of
    new tokens in the first row of each run, 0 in others (kernels/speculation/accept_tree.py).
    """
    by_token = cache.reshape(len(cache), -1, *cache.shape[3:])
    for first in np.flatnonzero(counts):
        for row in range(first + 1, first + counts[first]):
            by_token[:, slot_mapping[row]] = by_token[:, slot_mapping[path[row]]]


@kernel(dependent_launch=True)
def compact_path_kernel(cache, slot_mapping, path, counts):
    """Tokens of any size, one number per thread at a time: cache [L, tokens, N] of integers; others int32 [T], [R], [R]."""
    wait_for_predecessors()
    first, layer, i = cuda.blockIdx.y, cuda.blockIdx.z, cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < cache.shape[2]:
        for row in range(first + 1, first + counts[first]):
            if path[row] != row:
                cache[layer, slot_mapping[row], i] = cache[layer, slot_mapping[path[row]], i]


@kernel(dependent_launch=True)
def compact_path_vector_kernel(cache, slot_mapping, path, counts):
    """Tokens of whole, aligned vectors: cache uint32 [L, tokens, N / 4]; others as above."""
    wait_for_predecessors()
    first, layer, size = cuda.blockIdx.y, int64(cuda.blockIdx.z), int64(cache.shape[2])
    i = (cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * 4
    held = cuda.local.array(4, uint32)
    if i < size:
        for row in range(first + 1, first + counts[first]):
            if path[row] != row:
                load_words(cache, (layer * cache.shape[1] + slot_mapping[path[row]]) * size + i, held, 0)
                store_128(cache, (layer * cache.shape[1] + slot_mapping[row]) * size + i, held[0], held[1], held[2], held[3])


def compact_path(cache, slot_mapping, path, counts, stream=None) -> None:
    """Move tokens in place; arguments as in `compact_path_reference`, all NumPy or all on one device.

    Raises KernelArgumentError for shapes, dtypes and gaps in the cache.
    """
    check(cache.ndim >= 4, f"cache has shape {tuple(cache.shape)}; it must be [layers, num_blocks, block_size, ...]")
    check(is_contiguous(cache), "cache has gaps: give the array that holds all layers, not a view of one of them")
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=None)
    check_array("path", path, INDEX_DTYPES, rows=None)
    check_array("counts", counts, INDEX_DTYPES, rows=path.shape[0])
    layers, tokens, nbytes = cache.shape[0], cache.shape[1] * cache.shape[2], math.prod(cache.shape[3:]) * cache.dtype.itemsize
    by_token = cache.reshape(layers, tokens, -1).view(np.uint8 if nbytes % 4 else np.uint32)
    vectors, grid = vectors_per_row(by_token.shape[2], by_token), (path.shape[0], layers)
    arguments = (by_token, slot_mapping, path, counts)
    if vectors:
        launch(compact_path_vector_kernel, (ceil_div(vectors, THREADS), *grid), THREADS, arguments, stream)
    else:
        launch(compact_path_kernel, (ceil_div(by_token.shape[2], THREADS), *grid), THREADS, arguments, stream)
