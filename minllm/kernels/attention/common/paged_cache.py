"""The address of a key in a paged cache: the address computation shared by all attention kernels.

Position p of a sequence is slot p % block_size of block block_table[p // block_size] (Kwon et al., PagedAttention, arXiv 2309.06180,
section 4.1). The cache may hold more than 2**31 elements, so the block's offset is 64 bits wide; within a block 32 bits are enough
(arguments.py checks that), and 32-bit arithmetic is several times cheaper on a GPU. block_size is a constant of the kernel, so that
division and remainder become shifts or multiplications.
"""

import functools

from numba import cuda, int64, uint32


@functools.cache
def make_lookup(block_size):
    """The device functions (block_of, element_of): the block of a position, and the index of an element of it in the cache."""

    @cuda.jit(device=True)
    def block_of(block_table, position):
        """The block that holds a position. block_table: the sequence's row of the block tables."""
        return block_table[uint32(position) // uint32(block_size)]

    @cuda.jit(device=True)
    def element_of(block, position, key_stride, within):
        """Flat index in the cache of element `within` of the position's [kv_heads, head_dim]. key_stride: the cache's token_stride."""
        slot = uint32(position) % uint32(block_size)
        return int64(block) * int64(uint32(block_size * key_stride)) + int64(uint32(slot * uint32(key_stride) + uint32(within)))

    return block_of, element_of


@cuda.jit(device=True)
def kv_head_of(head, heads, kv_heads):
    """The KV head that a query head reads."""
    return uint32(head) // (uint32(heads) // uint32(kv_heads))
