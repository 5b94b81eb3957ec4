"""Matrix descriptors: address and layout of a wgmma operand in shared memory.

    bits 0-13   start address / 16        bits 16-29  leading byte offset / 16      bits 32-45  stride byte offset / 16
    bits 49-51  base offset, 0 here       bits 62-63  swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes

A matrix [rows, 16] of 16-bit elements, or [rows, 32] of 8-bit elements, which are always K-major, consists of core matrices of 8 lines of
16 bytes each. With a swizzle of S bytes, a line of S bytes holds S/16 adjacent chunks, and 8 such lines are an atom; without swizzle
(S = 16 below) a line is one chunk.

    K-major ("k"):     a line runs along the depth K. Eight rows are an atom; the next eight are `stride` bytes further. Without swizzle the
                       second half of the depth is `leading` bytes further; with swizzle a line holds both halves, and `leading` is unused.
    MN-major ("mn"):   a line runs along S/2 rows. Eight steps of depth are an atom. With swizzle the next eight steps are `stride` bytes
                       further, and the next S/2 rows `leading` bytes; without swizzle it is the other way round.

PTX ISA, "Asynchronous warpgroup level matrix shared memory layout" and "Matrix descriptor".
"""

import functools

import numpy as np
from numba import cuda, uint64

from minllm.ptx.swizzle import CHUNK_BYTES, swizzled
from minllm.sim.arrays import fail
from minllm.sim.machine import SHARED_MEMORY_BYTES

SWIZZLE_OF_MODE = {0: 0, 1: 128, 2: 64, 3: 32}
CORE = 8  # rows of a core matrix, and 16-bit elements per chunk


@cuda.jit(device=True)
def matrix_descriptor(address, leading_bytes, stride_bytes, swizzle):
    """matrix_descriptor(address, leading_bytes, stride_bytes, swizzle) -> uint64: the descriptor of a matrix at a shared address. swizzle:
    0, 32, 64 or 128; the atoms of a swizzled matrix begin at multiples of 8 * swizzle bytes."""
    mode = 0
    if swizzle == 128:
        mode = 1
    if swizzle == 64:
        mode = 2
    if swizzle == 32:
        mode = 3
    start = uint64((address >> 4) & 0x3FFF)
    leading = uint64((leading_bytes >> 4) & 0x3FFF)
    stride = uint64((stride_bytes >> 4) & 0x3FFF)
    return start | leading << uint64(16) | stride << uint64(32) | uint64(mode) << uint64(62)


@cuda.jit(device=True)
def advance_descriptor(descriptor, byte_count):
    """advance_descriptor(descriptor, byte_count) -> uint64: the descriptor of the same layout `byte_count` bytes (a multiple of 16)
    further. For example, the next 16 steps of depth of a K-major tile of 16-bit elements are 32 bytes further."""
    return uint64(descriptor) + uint64(byte_count >> 4)


@functools.lru_cache(maxsize=1024)
def matrix_chunks(descriptor, rows, major):
    """The shared addresses / 16 of the chunks that hold the [rows, 16] matrix of a descriptor, in the order of chunk_offsets."""
    start, leading, stride = (descriptor >> shift & 0x3FFF for shift in (0, 16, 32))  # in chunks
    swizzle = SWIZZLE_OF_MODE[descriptor >> 62]
    if descriptor >> 49 & 7:
        fail("a matrix descriptor with a base offset: let the tile begin at a multiple of 8 lines instead")
    chunks = swizzled(start + chunk_offsets(rows, major, leading, stride, swizzle), swizzle)
    if chunks.max() >= SHARED_MEMORY_BYTES // CHUNK_BYTES:
        fail(f"a matrix descriptor from shared address {start * CHUNK_BYTES} on reaches past the end of shared memory")
    return chunks


def read_matrix(memory, descriptor, rows, major):
    """The [rows, 16] matrix (uint16) that a descriptor describes in a block's shared memory (uint8).

    major: the axis along which the chunks run, "k" or "mn".
    """
    chunks = matrix_chunks(int(descriptor), rows, major)
    found = memory.view(np.uint16).reshape(-1, CORE)[chunks]
    if major == "k":
        return found.reshape(rows, 2 * CORE)  # chunks [rows, 2 chunks of depth]
    return found.reshape(rows // CORE, 2 * CORE, CORE).transpose(0, 2, 1).reshape(rows, 2 * CORE)  # chunks [groups of 8 rows, 16 of depth]


@functools.cache
def chunk_offsets(rows, major, leading, stride, swizzle):
    """The offsets, in chunks from its start before swizzling, of the chunks of a [rows, 16] matrix, in read_matrix's order."""
    line = max(swizzle // CHUNK_BYTES, 1)  # chunks per line
    if major == "k":
        row, half = np.arange(rows)[:, None], np.arange(2)[None]
        return row // CORE * stride + row % CORE * line + half * (1 if swizzle else leading)
    group, depth = np.arange(rows // CORE)[:, None], np.arange(2 * CORE)[None]
    if swizzle:
        return group % line + group // line * leading + depth % CORE * line + depth // CORE * stride
    return group * stride + depth % CORE + depth // CORE * leading
