"""Whole blocks of the cache are copied to other blocks: the copy in copy on write.

    cache[destination] = cache[source]   for each pair (source, destination)

Two sequences that share a block part when one of them writes into it: it gets a copy first (Kwon et al. 2023, "Efficient Memory Management
for Large Language Model Serving with PagedAttention", section 4.4). P pairs of blocks of R bytes: no FLOPs; P R bytes read and as many
written; arithmetic intensity 0, so memory sets the time.

What the bytes mean does not matter here, so arrays of every dtype are seen as 32-bit words, or as bytes where a block is not whole words;
the offset of a block is 64 bits wide. A block of threads copies a piece of 8 KB, 16 bytes a thread at a time. All pairs of a launch are
copied at the same time: `in_rounds` cuts a list of copies that depend on each other into launches.
"""

import numpy as np
from numba import cuda, int64, uint32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.vector import vectors_a_row
from minllm.ptx import load_128, store_128
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128
VECTORS_A_THREAD = 4
WORDS_A_VECTOR = 4
WORDS_HELD = WORDS_A_VECTOR * VECTORS_A_THREAD
PIECE = THREADS * VECTORS_A_THREAD  # vectors, or bytes where there are no vectors
MAX_PAIRS = 65535  # the second axis of a grid ends there


def copy_blocks_reference(cache, copies):
    """cache [num_blocks, ...], in place; copies [P, 2], pairs of source and destination, copied one after the other."""
    for source, destination in copies:
        cache[destination] = cache[source]


def in_rounds(copies):
    """Cuts a list of (source, destination), meant one after the other, into lists that may be copied at the same time.

    In such a list no block is written that is read or written by another copy of it.
    """
    rounds, read, written = [[]], set(), set()
    for source, destination in copies:
        if source in written or destination in written or destination in read:
            rounds.append([])
            read, written = set(), set()
        rounds[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return rounds if copies else []


@kernel
def copy_blocks_kernel(cache, copies):
    """Any size of a block, a byte a thread at a time: cache uint8 [num_blocks, R], copies int32 [P, 2]."""
    pair = cuda.blockIdx.y
    source, destination, row = copies[pair, 0], copies[pair, 1], cache.shape[1]
    start = cuda.blockIdx.x * PIECE + cuda.threadIdx.x
    for i in range(start, min(row, (cuda.blockIdx.x + 1) * PIECE), THREADS):
        cache[destination, i] = cache[source, i]


@kernel
def copy_blocks_vector_kernel(cache, copies):
    """Blocks of whole, aligned vectors: cache uint32 [num_blocks, R / 4], copies int32 [P, 2]. Loads come before stores."""
    pair, row = cuda.blockIdx.y, int64(cache.shape[1])
    source, destination = copies[pair, 0] * row, copies[pair, 1] * row
    first = (cuda.blockIdx.x * PIECE + cuda.threadIdx.x) * WORDS_A_VECTOR
    held = cuda.local.array(WORDS_HELD, uint32)
    for v in range(VECTORS_A_THREAD):
        i = first + v * THREADS * WORDS_A_VECTOR
        if i < row:
            held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3] = load_128(cache, source + i)
    for v in range(VECTORS_A_THREAD):
        i = first + v * THREADS * WORDS_A_VECTOR
        if i < row:
            store_128(cache, destination + i, held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3])


def copy_blocks(cache, copies, stream=None):
    """Copy blocks of a cache [num_blocks, ...] of any dtype; copies int32 [P, 2], pairs of source and destination.

    Blocks must be inside the cache, and no block may be written that is read or written by another pair: the kernel trusts them
    (`in_rounds` makes such lists). Raises KernelArgumentError for shapes, dtypes and gaps between blocks.
    """
    check_array("copies", copies, INDEX_DTYPES, pairs=None, source_and_destination=2)
    check(cache.ndim >= 2, f"cache has shape {tuple(cache.shape)}; it must be [num_blocks, ...]")
    contiguous = cache.flags.c_contiguous if isinstance(cache, np.ndarray) else cache.is_contiguous
    check(contiguous, "cache has gaps: give the array that holds all layers of a block, not a view of one of them")
    pairs, blocks = copies.shape[0], cache.shape[0]
    check(pairs <= MAX_PAIRS, f"{pairs} copies are more than the {MAX_PAIRS} of one launch: cut the list")
    flat = cache.reshape(blocks, -1)
    if vectors := vectors_a_row(flat.shape[1], flat):
        launch(copy_blocks_vector_kernel, (ceil_div(vectors, PIECE), pairs), THREADS, (flat.view(np.uint32), copies), stream)
    else:
        row = flat.view(np.uint8)
        launch(copy_blocks_kernel, (ceil_div(row.shape[1], PIECE), pairs), THREADS, (row, copies), stream)
