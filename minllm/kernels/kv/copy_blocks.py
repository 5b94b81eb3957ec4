"""Copy whole cache blocks: to other blocks (copy on write), or to and from a buffer for transfers to the host.

    to[layer, destination] = cache[layer, source]   for each layer and pair (source, destination)

`to` is the cache itself, or another array of such blocks. Keys and values of all layers lie in one array (cache/kv_cache.py), so one launch
copies a block in all of them: the third axis of the grid counts these layers.

When one of two sequences that share a block writes into it, it first gets its own copy (Kwon et al. 2023, "Efficient Memory Management
for Large Language Model Serving with PagedAttention", section 4.4). P pairs of blocks of R bytes in L layers: no FLOPs; L P R bytes read
and as many written; arithmetic intensity 0, so it is memory-bound.

Dtypes do not matter here: all arrays are viewed as 32-bit words, or as bytes if a block is not whole words; offsets of blocks are 64 bits
wide. A thread block copies a piece of 4 KB, 16 bytes per thread at a time. All pairs of a launch are copied at the same time:
copy_rounds.py splits a list of dependent copies into launches.
"""

import math

import numpy as np
from numba import cuda, int64, uint32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array, is_contiguous
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vectors_per_row
from minllm.ptx import store_128
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128
VECTORS_PER_THREAD = 2
WORDS_PER_VECTOR = 4
WORDS_HELD = WORDS_PER_VECTOR * VECTORS_PER_THREAD
PIECE = THREADS * VECTORS_PER_THREAD  # vectors, or bytes if blocks are not whole vectors
MAX_PAIRS = MAX_LAYERS = 65535  # the limit of a grid's second and third axes


def copy_blocks_reference(cache, copies, to=None):
    """Copy blocks of cache [num_blocks, ...] in place, or into `to`: copies [P, 2], pairs (source, destination), one after the other."""
    to = cache if to is None else to
    for source, destination in copies:
        to[destination] = cache[source]


@kernel
def copy_blocks_kernel(cache, to, copies):
    """Blocks of any size, one byte per thread at a time: cache, to uint8 [L, num_blocks, R], copies int32 [P, 2]."""
    # exercise: kv.copy_blocks
    pair, layer = cuda.blockIdx.y, cuda.blockIdx.z
    source, destination, row = copies[pair, 0], copies[pair, 1], cache.shape[2]
    start = cuda.blockIdx.x * PIECE + cuda.threadIdx.x
    for i in range(start, min(row, (cuda.blockIdx.x + 1) * PIECE), THREADS):
        to[layer, destination, i] = cache[layer, source, i]
    # end exercise


@kernel(dependent_launch=True)
def copy_blocks_vector_kernel(cache, to, copies):
    """Blocks of whole, aligned vectors: cache, to uint32 [L, num_blocks, R / 4], copies int32 [P, 2]. Loads come before stores."""
    wait_for_predecessors()
    pair, layer, row = cuda.blockIdx.y, int64(cuda.blockIdx.z), int64(cache.shape[2])
    source = (layer * cache.shape[1] + copies[pair, 0]) * row
    destination = (layer * to.shape[1] + copies[pair, 1]) * row
    first = (cuda.blockIdx.x * PIECE + cuda.threadIdx.x) * WORDS_PER_VECTOR
    held = cuda.local.array(WORDS_HELD, uint32)
    for v in range(VECTORS_PER_THREAD):
        i = first + v * THREADS * WORDS_PER_VECTOR
        if i < row:
            load_words(cache, source + i, held, WORDS_PER_VECTOR * v)
    for v in range(VECTORS_PER_THREAD):
        i = first + v * THREADS * WORDS_PER_VECTOR
        if i < row:
            store_128(to, destination + i, held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3])


def copy_blocks(cache, copies, stream=None, to=None):
    """Copy blocks of a cache [num_blocks, ...] of one layer; the rest as in `copy_blocks_of_layers`."""
    check(cache.ndim >= 2, f"cache has shape {tuple(cache.shape)}; it must be [num_blocks, ...]")
    caches, targets = (array if array is None else one_layer(array) for array in (cache, to))
    copy_blocks_of_layers(caches, copies, stream, targets)


def one_layer(array):
    """View [num_blocks, ...] as [1, num_blocks, ...], a cache of one layer."""
    check_gaps(array)
    return array.reshape(1, *array.shape)


def copy_blocks_of_layers(caches, copies, stream=None, to=None):
    """Copy blocks of caches [layers, num_blocks, ...] of any dtype; copies int32 [P, 2], pairs (source, destination), apply to every layer.

    to: the destination, with as many layers and blocks of the same size and dtype; by default the caches themselves. The kernel does not
    check that blocks lie inside the arrays or that no pair writes a block that another reads or writes (copy_rounds.py makes such lists).
    Raises KernelArgumentError for shapes, dtypes and gaps between blocks.
    """
    to = caches if to is None else to
    check_array("copies", copies, INDEX_DTYPES, pairs=None, source_and_destination=2)
    check(caches.ndim >= 3, f"caches has shape {tuple(caches.shape)}; it must be [layers, num_blocks, ...]")
    for array in (caches, to):
        check_gaps(array)
    layers, pairs = caches.shape[0], copies.shape[0]
    check(pairs <= MAX_PAIRS, f"{pairs} copies are more than the {MAX_PAIRS} of one launch: cut the list")
    check(layers <= MAX_LAYERS, f"{layers} layers are more than the {MAX_LAYERS} of one launch: cut the array")
    if caches.dtype != to.dtype or tuple(caches.shape[2:]) != tuple(to.shape[2:]):
        given, wanted = (f"{array.dtype} {tuple(array.shape[2:])}" for array in (caches, to))
        check(False, f"blocks of {given} cannot be copied to blocks of {wanted}")
    check(layers == to.shape[0], f"blocks of {layers} layers cannot be copied to blocks of {to.shape[0]} layers")
    rows = [rows_of_words(array) for array in (caches, to)]
    if vectors := vectors_per_row(rows[0].shape[2], *rows):
        launch(copy_blocks_vector_kernel, (ceil_div(vectors, PIECE), pairs, layers), THREADS, (*rows, copies), stream)
    else:
        rows = [array.view(np.uint8) for array in rows]
        launch(copy_blocks_kernel, (ceil_div(rows[0].shape[2], PIECE), pairs, layers), THREADS, (*rows, copies), stream)


def rows_of_words(array):
    """[layers, num_blocks, ...] as uint32 [layers, num_blocks, R / 4], or as bytes if a block is not whole words.

    Such rows are returned unchanged: a caller that copies repeatedly keeps them.
    """
    dtype = np.uint8 if math.prod(array.shape[2:]) * array.dtype.itemsize % 4 else np.uint32
    if array.ndim == 3 and array.dtype == dtype:
        return array
    return array.reshape(*array.shape[:2], -1).view(dtype)


def check_gaps(array):
    """Raise KernelArgumentError for an array with gaps between blocks."""
    check(is_contiguous(array), "cache has gaps: give the array that holds all layers of a block, not a view of one of them")
