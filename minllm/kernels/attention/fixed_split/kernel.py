"""The kernel of fixed_split.py: a tile of packed rows walks over splits of its keys.

Within a split a row folds tiles of keys as in FlashAttention-2, and every split begins with no state. What follows is one of two things.
`folds`: a block walks over all keys of its rows, and folds each split's state into a total in shared memory. Otherwise blocks divide the
splits, and leave their states in memory for merge.py. All roundings are those of the equation in merge.py, either way.

How threads map to data: grid (tiles of rows * parts, KV heads, sequences), the longest tiles first; a warp has 16 rows.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.common.window_keys import make_row_keys
from minllm.kernels.attention.fixed_split.merge import SPLIT_KEYS, fold_weights, folded, splits_of
from minllm.kernels.attention.fixed_split.source import Keys, PackedRows, make_packing, make_source, source_sizes
from minllm.kernels.attention.flash_attention_2.kernel import State
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, warp_tiles
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import cp_async_wait_group_0, ex2, float_as_uint, store_64, uint_as_float
from minllm.runtime.kernel import kernel


class Splits(NamedTuple):
    """Where the states of splits go."""

    maxima: Any  # [tokens, heads, splits]
    sums: Any  # the same
    outs: Any  # [tokens, heads, splits, head_dim]


def shared_bytes_of(tiles, folds):
    """Shared memory of a block: Q, the stages of K and V, and the threads' totals."""
    stages, stage_words = source_sizes(tiles)
    return 4 * (tiles.keys_at + stages * stage_words + (tiles.out_count * tiles.threads if folds else 0))


def make_softmax(tiles, group, score_rows, out_rows):
    """(clear, mask, fold): device functions over a split's State of a thread's rows."""
    row_count, out_count = tiles.row_count, tiles.out_count
    token_of, _ = make_packing(group)
    first_key_of, last_key_of = make_row_keys()

    @cuda.jit(device=True)
    def clear(state):
        for i in range(out_count):
            state.acc[i] = float32(0.0)
        for row in range(row_count):
            state.maxima[row] = float32(MINUS_INFINITY)
            state.sums[row] = float32(0.0)

    @cuda.jit(device=True)
    def mask(scores, first_key, first_row, first_position, sliding_window, lane):
        """Scores of keys that a row may not see become -inf; first_row: the warp's; first_position: that of the sequence's first token."""
        for row in range(row_count):
            position = int32(first_position + token_of(first_row + score_rows.position(row, lane)))
            first, last = first_key_of(position, sliding_window), last_key_of(position)
            score_rows.mask(scores, row, first_key + score_rows.column(lane), first, last)

    @cuda.jit(device=True)
    def fold(scores, state, scale):
        """Scores become p = 2^(s - m'), and m, l and o follow; the FMA is explicit, for no compiler is to choose another rounding."""
        for row in range(row_count):
            maximum = score_rows.maximum(scores, row, state.maxima[row])
            shift = finite_or_zero(maximum)
            correction = ex2((state.maxima[row] - shift) * scale)
            state.maxima[row] = maximum
            state.sums[row] = cuda.fma(state.sums[row], correction, score_rows.exponentials(scores, row, shift, scale, float32(0.0)))
            out_rows.scale(state.acc, row, correction)

    return clear, mask, fold


def make_ends(tiles, group, out_rows):
    """(clear_total, fold_total, store_total, store_split): what becomes of a split's State; totals keep their o in shared memory."""
    head_dim, row_count, out_count, threads = tiles.head_dim, tiles.row_count, tiles.out_count, tiles.threads
    blocks, stored_blocks = out_count // (2 * row_count), head_dim // 8  # of 8 columns: in registers, and in memory
    stages, stage_words = source_sizes(tiles)
    totals_at = tiles.keys_at + stages * stage_words
    _, place_of = make_packing(group)

    @cuda.jit(device=True)
    def element(row, block):
        """Where the lane's two numbers of 8 columns lie in an accumulator (tiles/rows.py)."""
        return 4 * (row // 2 * blocks + block) + row % 2 * 2

    @cuda.jit(device=True)
    def clear_total(total, shared):
        for i in range(out_count):
            shared[totals_at + i * threads + cuda.threadIdx.x] = uint32(0)
        for row in range(row_count):
            total.maxima[row] = float32(MINUS_INFINITY)
            total.sums[row] = float32(0.0)

    @cuda.jit(device=True)
    def fold_total(state, total, shared, scale):
        """Fold a split into the total; a row that sees none of its keys stays as it is."""
        for row in range(row_count):
            sum_of_lanes = out_rows.sum(state.sums[row])
            if state.maxima[row] > float32(MINUS_INFINITY):
                maximum, weight, split_weight = fold_weights(total.maxima[row], state.maxima[row], scale)
                total.maxima[row] = maximum
                total.sums[row] = folded(total.sums[row], weight, sum_of_lanes, split_weight)
                for block in range(blocks):
                    for i in range(2):
                        at = element(row, block) + i
                        place = totals_at + at * threads + cuda.threadIdx.x
                        shared[place] = float_as_uint(folded(uint_as_float(shared[place]), weight, state.acc[at], split_weight))

    @cuda.jit(device=True)
    def store_total(total, acc, shared, out, rows, first_row, lane):
        """out = o / l; acc: registers for o."""
        for i in range(out_count):
            acc[i] = uint_as_float(shared[totals_at + i * threads + cuda.threadIdx.x])
        for i in range(row_count):
            row = first_row + out_rows.position(i, lane)
            token, head = place_of(rows, row)
            start = (int64(token) * out.shape[1] + head) * head_dim
            out_rows.store(acc, i, reciprocal_or_zero(total.sums[i]), out, start, row < rows.first + rows.count, lane)

    @cuda.jit(device=True)
    def store_split(state, splits, split, rows, first_row, lane):
        """Leave a split's state in memory."""
        for i in range(row_count):
            row = first_row + out_rows.position(i, lane)
            sum_of_lanes = out_rows.sum(state.sums[i])
            if row < rows.first + rows.count:
                token, head = place_of(rows, row)
                if lane % 4 == 0:
                    splits.maxima[token, head, split], splits.sums[token, head, split] = state.maxima[i], sum_of_lanes
                place = (int64(token) * splits.outs.shape[1] + head) * splits.outs.shape[2] + split
                start = place * head_dim + out_rows.column(lane)
                for block in range(stored_blocks):
                    at = element(i, block)
                    store_64(splits.outs, start + 8 * block, float_as_uint(state.acc[at]), float_as_uint(state.acc[at + 1]))

    return clear_total, fold_total, store_total, store_split


@functools.cache
def make_kernel(dtype, head_dim, block_size, group, query_tile, key_tile, warps, folds):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is 16 * warps, key_tile a divisor of SPLIT_KEYS."""
    tiles = warp_tiles(head_dim, query_tile, key_tile, warps)
    matmuls, score_rows, out_rows = make_tensor_core_parts(tiles, dtype, dtype)
    source = make_source(tiles, block_size, group)
    clear, mask, fold = make_softmax(tiles, group, score_rows, out_rows)
    clear_total, fold_total, store_total, store_split = make_ends(tiles, group, out_rows)
    token_of, _ = make_packing(group)
    query_words, score_count, out_count, row_count = tiles.query_words, tiles.score_count, tiles.out_count, tiles.row_count
    stages, stage_words, lane_rows = source.stages, source.stage_words, tiles.lane_rows

    @cuda.jit(device=True)
    def keys_of_part(first_token, last_token, sliding_window, part, parts):
        """(start, stop): the keys from the first that the first token sees to the last one's own, if there is one part; else a share of them,
        in whole splits. Tokens by position."""
        stop = int32(max(0, last_token + 1))
        start = int32(max(0, first_token - sliding_window + 1)) if sliding_window > 0 else int32(0)
        first, last = splits_of(start, stop)
        share = int32(uint32(max(0, last - first) + parts - 1) // uint32(parts))
        first = int32(first + part * share)
        return max(start, int32(first * SPLIT_KEYS)), min(stop, int32((first + share) * SPLIT_KEYS))

    @kernel(launch_bounds=tiles.launch_bounds, dependent_launch=True)
    def fixed_split_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        split_max,  # [tokens, heads, splits], or None if a block folds
        split_sum,  # the same
        split_out,  # [tokens, heads, splits, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
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
        first_position = int32(context_lens[sequence] - tokens)  # of the sequence's first new token
        tile_position = int32(first_position + token_of(first_row))
        last_position = int32(first_position + token_of(first_row + min(rows.count, query_tile) - 1))
        start, stop = keys_of_part(tile_position, last_position, sliding_window, int32(block - tile * parts), parts)
        keys = Keys(key_cache, value_cache, block_tables[sequence], kv_head, start, stop)
        lane, warp_row = int32(cuda.threadIdx.x % 32), int32(cuda.threadIdx.x // 32 * lane_rows)

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        state = State(cuda.local.array(row_count, float32), cuda.local.array(row_count, float32), cuda.local.array(out_count, float32))
        total = State(cuda.local.array(row_count, float32), cuda.local.array(row_count, float32), None)
        if folds:
            clear_total(total, shared)
        elif start >= stop:
            return
        clear(state)
        first_key, stage = int32(start - start % key_tile), int32(0)
        source.begin(query, rows, keys, first_key, shared)
        matmuls.begin(query_fragments, shared, warp_row, lane)
        while first_key < stop:
            next_key = int32(first_key + key_tile)
            stage_tiles = shared[stage * stage_words :]
            source.keys(keys, first_key, stage, shared)
            matmuls.scores(scores, query_fragments, stage_tiles, warp_row, lane)
            source.values(keys, first_key, stage, shared)
            if next_key > tile_position + 1 or (sliding_window > 0 and first_key < last_position - sliding_window + 1):
                mask(scores, first_key, first_row + warp_row, first_position, sliding_window, lane)
            fold(scores, state, scale)
            matmuls.output(state.acc, scores, stage_tiles, warp_row, lane)
            split, within = splits_of(first_key, next_key)[0], uint32(next_key) % uint32(SPLIT_KEYS)
            if within == 0 or next_key >= stop:
                if folds:
                    fold_total(state, total, shared, scale)
                else:
                    store_split(state, Splits(split_max, split_sum, split_out), split, rows, first_row + warp_row, lane)
                clear(state)
            first_key, stage = next_key, int32(stages - 1 - stage)
        cp_async_wait_group_0()  # an asynchronous copy must not outlive its block
        if folds:
            store_total(total, state.acc, shared, out, rows, first_row + warp_row, lane)

    return fixed_split_kernel, tiles.threads, shared_bytes_of(tiles, folds)
