"""The kernel of fixed_split.py: for a tile of packed rows, loops over splits of its keys, each one tile of keys.

The weights of a row in a split are relative to its largest score there, p_j = 2^(s_j - m_s); they are multiplied by V, 16 columns of the
output at a time. If `folds`, the block processes all keys of its rows, and folds these sums into the output at once. Otherwise blocks
divide the splits, and store the sums in memory for merge.py. Both round as described in merge.py.

Threads to data: grid (tiles of rows * parts, KV heads, sequences), the longest tiles first; a warp has 16 rows. Warps without rows copy
keys and values, and compute nothing.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.common.window_keys import make_row_keys
from minllm.kernels.attention.fixed_split.merge import SPLIT_KEYS, fold_weights, folded, keys_of, splits_of
from minllm.kernels.attention.fixed_split.source import Keys, PackedRows, make_packing, make_source
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, warp_tiles
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import (
    cp_async_wait_group_0,
    float_as_uint,
    ldmatrix_x4_trans,
    mma_m16n8k16_bf16,
    mma_m16n8k16_f16,
    shared_address,
    store_64,
)
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel
from minllm.tiles.cp_async import row_words_of
from minllm.tiles.warp import WARP

ROWS = 2  # rows per lane, of a warp's 16; a lane holds a part of each (tiles/rows.py)


class Splits(NamedTuple):
    """The states of splits in memory."""

    maxima: Array  # [tokens, heads, splits]
    sums: Array  # the same
    outs: Array  # [tokens, heads, splits, head_dim]


class State(NamedTuple):
    """The state of a lane's rows, over one split or over all splits so far; float32."""

    maxima: Array  # [ROWS]
    sums: Array  # [ROWS]: over all lanes of the row
    acc: Array  # the lane's part of o: over all splits [head_dim / 2], over one split 16 columns at a time [8]


def make_split(tiles, dtype, group, score_rows):
    """(mask, weigh, multiply): device functions that compute the State of a split from its scores."""
    key_steps, row_words = tiles.key_tile // 16, row_words_of(tiles.head_dim)
    values_at = tiles.values_at
    mma = mma_m16n8k16_bf16 if dtype == "bfloat16" else mma_m16n8k16_f16
    token_of, _ = make_packing(group)
    first_key_of, last_key_of = make_row_keys()

    @cuda.jit(device=True)
    def mask(scores, first_key, first_row, first_position, sliding_window, lane):
        """Set scores of keys that a row may not see to -inf; first_row: the warp's; first_position: of the sequence's first new token."""
        for row in range(ROWS):
            position = int32(first_position + token_of(first_row + score_rows.position(row, lane)))
            first, last = first_key_of(position, sliding_window), last_key_of(position)
            score_rows.mask(scores, row, first_key + score_rows.column(lane), first, last)

    @cuda.jit(device=True)
    def weigh(weights, scores, split, scale):
        """Replace scores by p, packed as the left operand of mma; set m and l of the split."""
        for row in range(ROWS):
            split.maxima[row] = score_rows.maximum(scores, row, float32(MINUS_INFINITY))
            shift = finite_or_zero(split.maxima[row])
            split.sums[row] = score_rows.sum(score_rows.exponentials(scores, row, shift, scale, float32(0.0)))
        for step in range(key_steps):
            score_rows.pack(scores, 0, step, weights, 4 * step)

    @cuda.jit(device=True)
    def multiply(split, weights, step, shared, lane):
        """Compute columns 16 * step to 16 * step + 16 of o = P V."""
        right = cuda.local.array(4, uint32)
        source = shared_address(shared, values_at + lane % 16 * row_words + lane // 16 * 4)
        for i in range(8):
            split.acc[i] = float32(0.0)
        for key_step in range(key_steps):
            ldmatrix_x4_trans(right, 0, uint32(source + 4 * (16 * key_step * row_words + 8 * step)))
            mma(split.acc, 0, weights, 4 * key_step, right, 0)
            mma(split.acc, 4, weights, 4 * key_step, right, 2)

    return mask, weigh, multiply


def make_folds(tiles, group, out_rows):
    """(clear, fold_sums, fold_columns, store): device functions that fold splits into the total State, and write the output."""
    head_dim, out_count = tiles.head_dim, tiles.out_count
    _, place_of = make_packing(group)

    @cuda.jit(device=True)
    def clear(total):
        """Set the state to that of no keys."""
        for i in range(out_count):
            total.acc[i] = float32(0.0)
        for row in range(ROWS):
            total.maxima[row], total.sums[row] = float32(MINUS_INFINITY), float32(0.0)

    @cuda.jit(device=True)
    def fold_sums(total, split, weights, scale):
        """Fold m and l; weights [2, ROWS] receives the factors of the total and of the split."""
        for row in range(ROWS):
            total.maxima[row], weights[row], weights[ROWS + row] = fold_weights(total.maxima[row], split.maxima[row], scale)
            total.sums[row] = folded(total.sums[row], weights[row], split.sums[row], weights[ROWS + row])

    @cuda.jit(device=True)
    def fold_columns(total, split, weights, step):
        """Fold 16 columns of o; acc[4 * block + 2 * row + i] is column i of 2 in a block of 8 (tiles/rows.py)."""
        for i in range(8):
            row, at = i // 2 % ROWS, 8 * step + i
            total.acc[at] = folded(total.acc[at], weights[row], split.acc[i], weights[ROWS + row])

    @cuda.jit(device=True)
    def store(total, out, rows, first_row, lane):
        """Store out = o / l."""
        for i in range(ROWS):
            row = int32(first_row + out_rows.position(i, lane))
            token, head = place_of(rows, row)
            start = (int64(token) * out.shape[1] + head) * head_dim
            out_rows.store(total.acc, i, reciprocal_or_zero(total.sums[i]), out, start, row < rows.first + rows.count, lane)

    return clear, fold_sums, fold_columns, store


def make_stores(head_dim, group, out_rows):
    """(store_sums, store_columns): device functions that store the State of a split in memory."""
    _, place_of = make_packing(group)

    @cuda.jit(device=True)
    def store_sums(splits, split, number, starts, rows, first_row, lane):
        """Store m and l; starts receives the index of the lane's part of each row's o, or -1 for a row that does not exist."""
        for i in range(ROWS):
            row = int32(first_row + out_rows.position(i, lane))
            token, head = place_of(rows, row)
            starts[i] = int64(-1)
            if row < rows.first + rows.count:
                place = (int64(token) * splits.outs.shape[1] + head) * splits.outs.shape[2] + number
                starts[i] = place * head_dim + out_rows.column(lane)
                if lane % 4 == 0:
                    splits.maxima[token, head, number], splits.sums[token, head, number] = split.maxima[i], split.sums[i]

    @cuda.jit(device=True)
    def store_columns(splits, split, starts, step):
        """Store 16 columns of o."""
        for block in range(2):
            for row in range(ROWS):
                column, at = 16 * step + 8 * block, 4 * block + 2 * row
                if starts[row] >= 0 and column < head_dim:
                    store_64(splits.outs, starts[row] + column, float_as_uint(split.acc[at]), float_as_uint(split.acc[at + 1]))

    return store_sums, store_columns


@functools.cache
def make_kernel(dtype, head_dim, block_size, group, warps, folds):
    """(kernel, threads, shared bytes) for 16-bit `dtype` and tiles of 16 * warps rows."""
    tiles = warp_tiles(head_dim, 16 * warps, SPLIT_KEYS, warps)
    matmuls, score_rows, out_rows = make_tensor_core_parts(tiles, dtype, dtype)
    source = make_source(tiles, block_size, group)
    mask, weigh, multiply = make_split(tiles, dtype, group, score_rows)
    clear, fold_sums, fold_columns, store = make_folds(tiles, group, out_rows)
    store_sums, store_columns = make_stores(head_dim, group, out_rows)
    token_of, _ = make_packing(group)
    query_tile, query_words, score_count, out_count = tiles.query_tile, tiles.query_words, tiles.score_count, tiles.out_count
    weight_words, found_words, steps, fold_count = SPLIT_KEYS // 4, SPLIT_KEYS // WARP, -(-head_dim // 16), 2 * ROWS

    @kernel(launch_bounds=tiles.launch_bounds, dependent_launch=True)
    def fixed_split_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        split_max,  # [tokens, heads, splits], or None if `folds`
        split_sum,  # the same
        split_out,  # [tokens, heads, splits, head_dim], or None
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
        parts,  # blocks that divide the keys of a tile of rows
    ):
        wait_for_predecessors()
        shared = cuda.shared.array(0, uint32, alignment=128)
        sequence, kv_head = cuda.blockIdx.z, cuda.blockIdx.y
        block = uint32(cuda.gridDim.x - 1 - cuda.blockIdx.x)
        tile = int32(block // uint32(parts))
        first_token = query_start[sequence]
        tokens, first_row = int32(query_start[sequence + 1] - first_token), int32(tile * query_tile)
        rows = PackedRows(first_token, int32(kv_head * group), first_row, int32(tokens * group - first_row))
        if rows.count <= 0:
            return
        first_position = int32(context_lens[sequence] - tokens)  # position of the sequence's first new token
        tile_position = int32(first_position + token_of(first_row))
        last_position = int32(first_position + token_of(int32(first_row + min(rows.count, query_tile) - 1)))
        first_visible, visible_stop = keys_of(tile_position, last_position, sliding_window)
        first_split, split_stop = splits_of(first_visible, visible_stop)
        share = int32(uint32(split_stop - first_split + parts - 1) // uint32(parts))
        first_split = int32(first_split + int32(block - tile * parts) * share)
        split_stop = min(split_stop, int32(first_split + share))
        if not folds and first_split >= split_stop:
            return

        found = cuda.local.array(found_words, int32)
        stop = min(visible_stop, int32(split_stop * SPLIT_KEYS))
        keys = Keys(key_cache, value_cache, block_tables[sequence], kv_head, first_visible, stop, found)
        lane, warp_row = int32(cuda.threadIdx.x % WARP), int32(cuda.threadIdx.x // WARP * 16)
        query_fragments, scores = cuda.local.array(query_words, uint32), cuda.local.array(score_count, float32)
        weights, fold_factors = cuda.local.array(weight_words, uint32), cuda.local.array(fold_count, float32)
        split = State(cuda.local.array(ROWS, float32), cuda.local.array(ROWS, float32), cuda.local.array(8, float32))
        total = State(cuda.local.array(ROWS, float32), cuda.local.array(ROWS, float32), cuda.local.array(out_count, float32))
        starts, splits = cuda.local.array(ROWS, int64), Splits(split_max, split_sum, split_out)
        computes = warp_row < rows.count
        if folds:
            clear(total)
        source.begin(query, rows, keys, int32(first_split * SPLIT_KEYS), shared)
        number = first_split
        while number < split_stop:
            first_key = int32(number * SPLIT_KEYS)
            source.keys(keys, first_key)
            if computes:
                if number == first_split:
                    matmuls.begin(query_fragments, shared, warp_row, lane)
                matmuls.scores(scores, query_fragments, shared, warp_row, lane)
                if first_key + SPLIT_KEYS > tile_position + 1 or (sliding_window > 0 and first_key < last_position - sliding_window + 1):
                    mask(scores, first_key, first_row + warp_row, first_position, sliding_window, lane)
                weigh(weights, scores, split, scale)
            source.values(keys, first_key, shared)
            if computes:
                if folds:
                    fold_sums(total, split, fold_factors, scale)
                else:
                    store_sums(splits, split, number, starts, rows, first_row + warp_row, lane)
                for step in range(steps):
                    multiply(split, weights, step, shared, lane)
                    if folds:
                        fold_columns(total, split, fold_factors, step)
                    else:
                        store_columns(splits, split, starts, step)
            source.finish(keys, first_key, shared)
            number = int32(number + 1)
        cp_async_wait_group_0()  # an asynchronous copy must not outlive its block
        if folds:
            store(total, out, rows, first_row + warp_row, lane)

    return fixed_split_kernel, tiles.threads, tiles.shared_bytes
