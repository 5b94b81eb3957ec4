"""The two products of attention on Hopper: Q K^T and P V of one warpgroup, by wgmma, out of swizzled tiles (tiles.py).

wgmma takes its second operand from shared memory, keys or values here, and its first from there or from registers. Weights are in
registers anyway. Queries are put there where they fit: out of shared memory they would be read again for every tile of keys, and copies
and products together are close to what shared memory can deliver.
"""

import functools

from numba import cuda, uint32

from minllm.ptx import (
    advance_descriptor,
    keep_register,
    ldmatrix_x4,
    make_wgmma,
    matrix_descriptor,
    mbarrier_arrive,
    wgmma_commit_group,
    wgmma_fence,
)


@functools.cache
def make_products(shape, dtype):
    """(load_queries, start_scores, start_output): device functions in which a warpgroup starts a tile's products and closes their group.

    dtype: "bf16" or "f16".
    """
    head_dim, key_tile, row_bytes, piece = shape.head_dim, shape.key_tile, shape.row_bytes, shape.piece
    query_piece_bytes, key_piece_bytes, steps = shape.query_tile * row_bytes, key_tile * row_bytes, (head_dim + 15) // 16
    in_registers = shape.queries_in_registers
    multiply_query_key = make_wgmma(key_tile, dtype, a="registers" if in_registers else "shared")
    multiply_weights_values = make_wgmma(head_dim, dtype, a="registers", b_major="mn")

    @cuda.jit(device=True)
    def load_queries(query, tile, empty, own):
        """Where queries fit into registers: a warp's 16 rows of the tile at a shared address, as wgmma's A operand; then the tile is free.

        The swizzle has permuted chunks of 16 bytes. empty: the mbarrier that says that the tile may be overwritten.
        """
        if in_registers:
            for step in range(steps):
                offset = uint32((own // 32 * 16 + own % 16) * row_bytes + step * 16 % piece * 2 + own % 32 // 16 * 16)
                offset ^= uint32((offset >> uint32(7) & uint32(row_bytes // 16 - 1)) << uint32(4))
                ldmatrix_x4(query, 4 * step, uint32(tile + step * 16 // piece * query_piece_bytes + offset))
            mbarrier_arrive(empty)

    @cuda.jit(device=True)
    def start_scores_from_registers(scores, query, _, keys):
        """scores [64, key_tile] = Q K^T, 16 columns of head_dim a product; keys: a shared address."""
        right = matrix_descriptor(keys, 16, 8 * row_bytes, row_bytes)
        wgmma_fence()
        for step in range(steps):
            b = advance_descriptor(right, step * 16 // piece * key_piece_bytes + step * 16 % piece * 2)
            multiply_query_key(scores, query, 4 * step, b, step)
        wgmma_commit_group()

    @cuda.jit(device=True)
    def start_scores(scores, _, query, keys):
        """The same where Q does not fit into registers; query, keys: shared addresses."""
        left = matrix_descriptor(keep_register(query), 16, 8 * row_bytes, row_bytes)  # not kept for each step over all tiles: they spill
        right = matrix_descriptor(keys, 16, 8 * row_bytes, row_bytes)
        wgmma_fence()
        for step in range(steps):
            within = step * 16 % piece * 2
            a = advance_descriptor(left, step * 16 // piece * query_piece_bytes + within)
            b = advance_descriptor(right, step * 16 // piece * key_piece_bytes + within)
            multiply_query_key(scores, a, b, step)
        wgmma_commit_group()

    @cuda.jit(device=True)
    def start_output(acc, weights, values, more):
        """acc [64, head_dim] = P V, 16 keys a product, added to what is there if `more` is not 0; P in registers, V with rows as depth."""
        right = matrix_descriptor(values, key_piece_bytes, 8 * row_bytes, row_bytes)
        wgmma_fence()
        for step in range(key_tile // 16):
            multiply_weights_values(acc, weights, 4 * step, advance_descriptor(right, 16 * row_bytes * step), 1 if step else more)
        wgmma_commit_group()

    return load_queries, start_scores_from_registers if in_registers else start_scores, start_output
