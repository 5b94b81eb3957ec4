"""Whole blocks of the cache are copied: to other blocks, the copy in copy on write, or to and from a buffer on their way to the host.

    to[destination] = cache[source]   for each pair (source, destination); `to` is the cache itself, or another array of such blocks

Two sequences that share a block part when one of them writes into it: it gets a copy first (Kwon et al. 2023, "Efficient Memory Management
for Large Language Model Serving with PagedAttention", section 4.4). P pairs of blocks of R bytes: no FLOPs; P R bytes read and as many
written; arithmetic intensity 0, so memory sets the time.

What the bytes mean does not matter here, so arrays of every dtype are seen as 32-bit words, or as bytes where a block is not whole words;
the offset of a block is 64 bits wide. A block of threads copies a piece of 8 KB, 16 bytes a thread at a time. All pairs of a launch are
copied at the same time: `in_rounds` cuts a list of copies that depend on each other into launches.
"""

import numpy as np
from numba import cuda, int64, uint32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array, is_contiguous
from minllm.kernels.vector import vectors_a_row
from minllm.ptx import load_128, store_128
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128
VECTORS_A_THREAD = 4
WORDS_A_VECTOR = 4
WORDS_HELD = WORDS_A_VECTOR * VECTORS_A_THREAD
PIECE = THREADS * VECTORS_A_THREAD  # vectors, or bytes where there are no vectors
MAX_PAIRS = 65535  # the second axis of a grid ends there


def copy_blocks_reference(cache, copies, to=None):
    """cache [num_blocks, ...], in place, or into `to`; copies [P, 2], pairs of source and destination, copied one after the other."""
    to = cache if to is None else to
    for source, destination in copies:
        to[destination] = cache[source]


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
def copy_blocks_kernel(cache, to, copies):
    """Any size of a block, a byte a thread at a time: cache, to uint8 [num_blocks, R], copies int32 [P, 2]."""
    # exercise: kv.copy_blocks
    pair = cuda.blockIdx.y
    source, destination, row = copies[pair, 0], copies[pair, 1], cache.shape[1]
    start = cuda.blockIdx.x * PIECE + cuda.threadIdx.x
    for i in range(start, min(row, (cuda.blockIdx.x + 1) * PIECE), THREADS):
        to[destination, i] = cache[source, i]
    # end exercise


@kernel
def copy_blocks_vector_kernel(cache, to, copies):
    """Blocks of whole, aligned vectors: cache, to uint32 [num_blocks, R / 4], copies int32 [P, 2]. Loads come before stores."""
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
            store_128(to, destination + i, held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3])


def copy_blocks(cache, copies, stream=None, to=None):
    """Copy blocks of a cache [num_blocks, ...] of any dtype; copies int32 [P, 2], pairs of source and destination.

    to: another array of blocks of the same size and dtype that they are copied into; by default the cache itself. Blocks must be inside
    the arrays, and no block may be written that is read or written by another pair: the kernel trusts them (`in_rounds` makes such
    lists). Raises KernelArgumentError for shapes, dtypes and gaps between blocks.
    """
    to = cache if to is None else to
    check_array("copies", copies, INDEX_DTYPES, pairs=None, source_and_destination=2)
    check(cache.ndim >= 2, f"cache has shape {tuple(cache.shape)}; it must be [num_blocks, ...]")
    contiguous = is_contiguous(cache) and is_contiguous(to)
    check(contiguous, "cache has gaps: give the array that holds all layers of a block, not a view of one of them")
    pairs = copies.shape[0]
    check(pairs <= MAX_PAIRS, f"{pairs} copies are more than the {MAX_PAIRS} of one launch: cut the list")
    same = cache.dtype == to.dtype and tuple(cache.shape[1:]) == tuple(to.shape[1:])
    check(same, f"blocks of {cache.dtype} {tuple(cache.shape[1:])} cannot be copied to blocks of {to.dtype} {tuple(to.shape[1:])}")
    flat = [array.reshape(array.shape[0], -1) for array in (cache, to)]
    if vectors := vectors_a_row(flat[0].shape[1], *flat):
        words = [array.view(np.uint32) for array in flat]
        launch(copy_blocks_vector_kernel, (ceil_div(vectors, PIECE), pairs), THREADS, (*words, copies), stream)
    else:
        rows = [array.view(np.uint8) for array in flat]
        launch(copy_blocks_kernel, (ceil_div(rows[0].shape[1], PIECE), pairs), THREADS, (*rows, copies), stream)
