"""FlashAttention-2 over a paged KV cache, on tensor cores: the kernel for prompts, whole or in chunks.

The maths is online softmax (Milakov and Gimelshein, arXiv 1805.02867). A row keeps its maximum m, its sum l and its output o, and
folds in one tile of keys at a time:

    s_j = scale * (q . k_j)     m' = max(m, max_j s_j)     p_j = exp(s_j - m')     l' = l exp(m - m') + sum_j p_j
    o' = o exp(m - m') + sum_j p_j v_j          and at the end  out = o / l

FlashAttention-2 (Dao, arXiv 2307.08691, section 3) puts the loop over queries outside: a block owns a tile of queries and walks over
the keys, so m, l and o stay in registers, nothing is rescaled in memory, and tiles of queries run in parallel. Keys that no row of
the tile may see, those after its last row and those before its first row's window, are never loaded: half of the work of a causal
prompt.

FLOPs: 4 * heads * head_dim a visible (query, key) pair. Bytes: Q and out once, K and V once a tile of queries and head (most of it
from L2): 2 * head_dim * itemsize a key, for 4 * QUERY_TILE * head_dim FLOPs: an intensity of 2 * QUERY_TILE / itemsize = 64 FLOP a
byte from L2 for 64 rows of bf16, and far more from memory.

How threads map to data: grid (query tiles, heads, sequences), the longest tiles first. A warp owns 16 rows. Both products are
mma.m16n8k16; scores come out of the first in just the registers in which the second wants its A operand (section 3.3 of the paper:
warps split the queries, and exchange nothing). Q, K and V tiles come by cp.async; V travels while the scores are computed, and the
next K while softmax and the second product run. Shared rows are padded by 16 bytes, so that the eight rows of an ldmatrix tile fall
into different banks. A head_dim that is no multiple of 16 is padded with zeros in shared memory.
"""

import functools
import math

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention import flash_attention_2_float32
from minllm.kernels.attention.arguments import LOG2_E, check_arguments, query_len_bound
from minllm.kernels.attention.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.paged_cache import kv_head_of
from minllm.kernels.attention.register_rows import make_store_row
from minllm.kernels.attention.shared_tiles import make_tile_copies, row_words_of
from minllm.ptx import (
    cp_async_commit_group,
    cp_async_wait_group_0,
    ex2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_m16n8k16_bf16,
    mma_m16n8k16_f16,
    pack_bf16x2,
    pack_f16x2,
    shared_address,
)
from minllm.runtime.kernel import kernel, launch

ALL_LANES = 0xFFFFFFFF
MINUS_INFINITY = -math.inf


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(head_dim, max_query_len, heads, sequences, sm_count=132):
    """(query rows, keys, warps) of a block's tiles.

    Fewer keys for large heads, whose accumulators fill the registers. 128 rows, 32 a warp, read K and V half as often as 64; 64 rows make
    more blocks, for batches that would not give every multiprocessor two of the large ones.
    """
    if head_dim > 128:
        return 64, 32, 4
    large_blocks = -(-max_query_len // 128) * heads * sequences
    if large_blocks < 2 * sm_count:
        return 64, 64, 4
    return (128, 64, 4) if head_dim <= 64 else (128, 32, 4)


@functools.cache
def make_kernel(dtype, head_dim, block_size, query_tile, key_tile, warps):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is a multiple of 16 * warps, key_tile of 16."""
    multiply, pack = (mma_m16n8k16_bf16, pack_bf16x2) if dtype == "bfloat16" else (mma_m16n8k16_f16, pack_f16x2)
    threads = 32 * warps
    row_tiles = query_tile // (16 * warps)  # 16-row tiles of a warp
    padded_dim = -(-head_dim // 16) * 16
    steps = padded_dim // 16  # mma steps along head_dim
    key_pairs = key_tile // 16  # pairs of 8-key tiles, as ldmatrix.x4 brings them
    key_tiles = key_tile // 8
    dim_tiles = padded_dim // 8
    row_words = row_words_of(head_dim)  # 32-bit words from one shared row to the next
    keys_at = query_tile * row_words  # shared memory, in words: Q, then K, then V
    values_at = keys_at + key_tile * row_words
    shared_bytes = 4 * (values_at + key_tile * row_words)
    copy_query_tile, copy_cache_tile = make_tile_copies(head_dim, block_size, query_tile, key_tile, threads)
    store_row = make_store_row(head_dim, dtype)
    query_in_registers = padded_dim * row_tiles <= 128  # else its fragments are read again for every tile of keys
    query_words = 4 * steps * row_tiles if query_in_registers else 4 * row_tiles
    weight_words = 4 * row_tiles
    score_count, out_count, half_rows = 4 * key_tiles * row_tiles, 4 * dim_tiles * row_tiles, 2 * row_tiles

    # Blocks that ptxas is to fit into a multiprocessor's 65,536 registers, so that one computes while others wait; all without spills.
    registers = -(-(query_words + score_count + out_count + 40 * row_tiles) // 8) * 8
    limit = 3 if query_in_registers and padded_dim <= 64 else 2
    blocks_at_once = max(1, min(limit, 65536 // (threads * registers)))

    @cuda.jit(device=True)
    def load_query_fragments(fragments, at, shared, warp_row, row_tile, step, lane):
        """A operand of one step: rows by lane % 16, left and right 8 columns by lane // 16."""
        row = warp_row + 16 * row_tile + lane % 16
        ldmatrix_x4(fragments, at, shared_address(shared, row * row_words + step * 8 + lane // 16 * 4))

    @cuda.jit(device=True)
    def multiply_query_key(scores, query_fragments, shared, warp_row, lane):
        """scores[16-row tile, 8-key tile] = Q K^T of the tiles in shared memory."""
        key_fragments = cuda.local.array(4, uint32)
        for i in range(score_count):
            scores[i] = float32(0.0)
        row = lane % 8 + lane // 16 * 8  # two 8-key tiles, each with its left and right 8 columns
        source = shared_address(shared, keys_at + row * row_words + lane // 8 % 2 * 4)
        for step in range(steps):
            if not query_in_registers:
                for row_tile in range(row_tiles):
                    load_query_fragments(query_fragments, 4 * row_tile, shared, warp_row, row_tile, step, lane)
            for pair in range(key_pairs):
                ldmatrix_x4(key_fragments, 0, uint32(source + 4 * (16 * pair * row_words + 8 * step)))
                for row_tile in range(row_tiles):
                    a = 4 * (row_tile * steps + step) if query_in_registers else 4 * row_tile
                    c = 4 * (row_tile * key_tiles + 2 * pair)
                    multiply(scores, c, query_fragments, a, key_fragments, 0)
                    multiply(scores, c + 4, query_fragments, a, key_fragments, 2)

    @cuda.jit(device=True)
    def mask(scores, first_key, row_position, sliding_window, lane):
        """Scores of keys that a row may not see become -inf; row_position is the position of the warp's row lane // 4."""
        for row_tile in range(row_tiles):
            for i in range(4):
                last = int32(row_position + 16 * row_tile + i // 2 * 8)
                first = int32(last - sliding_window + 1 if sliding_window > 0 else 0)
                for key_tile_index in range(key_tiles):
                    key = int32(first_key + 8 * key_tile_index + 2 * (lane % 4) + i % 2)
                    if key > last or key < first:
                        scores[4 * (row_tile * key_tiles + key_tile_index) + i] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def fold_softmax(scores, maxima, sums, acc, scale):
        """Scores become exp(scores - new maximum); maxima, sums and accumulators follow. Rows are spread over four lanes."""
        for half in range(half_rows):  # rows lane // 4 and lane // 4 + 8 of each 16-row tile
            first_score = half // 2 * key_tiles * 4 + half % 2 * 2
            tile_maximum = maxima[half]
            for i in range(key_tiles):
                tile_maximum = max(tile_maximum, max(scores[first_score + 4 * i], scores[first_score + 4 * i + 1]))
            tile_maximum = max(tile_maximum, cuda.shfl_xor_sync(ALL_LANES, tile_maximum, 1))
            tile_maximum = max(tile_maximum, cuda.shfl_xor_sync(ALL_LANES, tile_maximum, 2))
            # Subtracted before it is scaled: the likeliest key then weighs exactly 1. A fused scores * scale - shift would keep the
            # rounding error of shift (at logits of 1e5 a part in 300) in the sum, but not in the weights, which are rounded to 16 bits.
            shift = finite_or_zero(tile_maximum)
            correction = ex2((maxima[half] - shift) * scale)
            maxima[half] = tile_maximum
            total = sums[half] * correction  # of this lane's keys only; the four lanes add theirs at the end
            for i in range(key_tiles):
                for j in range(2):
                    weight = ex2((scores[first_score + 4 * i + j] - shift) * scale)
                    scores[first_score + 4 * i + j] = weight
                    total += weight
            sums[half] = total
            first_out = half // 2 * dim_tiles * 4 + half % 2 * 2
            for i in range(dim_tiles):
                acc[first_out + 4 * i] *= correction
                acc[first_out + 4 * i + 1] *= correction

    @cuda.jit(device=True)
    def multiply_weights_values(acc, weights, shared, lane):
        """acc[16-row tile, 8-column tile] += P V; P's accumulator registers, packed to 16 bits, are the A operand."""
        source = shared_address(shared, values_at + lane % 16 * row_words + lane // 16 * 4)
        weight_fragments = cuda.local.array(weight_words, uint32)
        value_fragments = cuda.local.array(4, uint32)
        for pair in range(key_pairs):
            for row_tile in range(row_tiles):
                w = 4 * (row_tile * key_tiles + 2 * pair)
                for i in range(4):
                    weight_fragments[4 * row_tile + i] = pack(weights[w + 2 * i], weights[w + 2 * i + 1])
            for dim_pair in range(steps):
                ldmatrix_x4_trans(value_fragments, 0, uint32(source + 4 * (16 * pair * row_words + 8 * dim_pair)))
                for row_tile in range(row_tiles):
                    c = 4 * (row_tile * dim_tiles + 2 * dim_pair)
                    multiply(acc, c, weight_fragments, 4 * row_tile, value_fragments, 0)
                    multiply(acc, c + 4, weight_fragments, 4 * row_tile, value_fragments, 2)

    @cuda.jit(device=True)
    def store_rows(acc, sums, out, token, head, rows, warp_row, lane):
        """out = acc / sums."""
        for half in range(half_rows):
            total = sums[half] + cuda.shfl_xor_sync(ALL_LANES, sums[half], 1)
            inverse = reciprocal_or_zero(total + cuda.shfl_xor_sync(ALL_LANES, total, 2))
            row = warp_row + half // 2 * 16 + half % 2 * 8 + lane // 4
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            store_row(acc, half // 2 * dim_tiles * 4, half % 2, inverse, out, index, row < rows, lane)

    @kernel(launch_bounds=(threads, blocks_at_once))
    def flash_attention_2_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, uint32, alignment=128)
        sequence, head = cuda.blockIdx.z, cuda.blockIdx.y
        kv_head = kv_head_of(head, query.shape[1], key_cache.shape[2])
        first_row = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * query_tile
        token = query_start[sequence] + first_row
        rows = query_start[sequence + 1] - token  # rows of the sequence from the tile's first on
        if rows <= 0:
            return
        lane, warp_row = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32 * 16 * row_tiles
        context_len = context_lens[sequence]
        first_position = int32(context_len - rows)  # of the tile's first row
        visible_start = int32(max(0, first_position - sliding_window + 1) if sliding_window > 0 else 0)
        visible_stop = int32(max(0, min(context_len, first_position + query_tile)))
        block_table = block_tables[sequence]
        first_key = int32(visible_start - visible_start % key_tile)

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(half_rows, float32)
        sums = cuda.local.array(half_rows, float32)
        for i in range(out_count):
            acc[i] = float32(0.0)
        for i in range(half_rows):
            maxima[i] = float32(MINUS_INFINITY)
            sums[i] = float32(0.0)

        copy_query_tile(query, token, head, rows, shared)
        if first_key < visible_stop:
            copy_cache_tile(key_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, keys_at)
        cp_async_commit_group()
        if query_in_registers:
            cp_async_wait_group_0()
            cuda.syncthreads()
            for row_tile in range(row_tiles):
                for step in range(steps):
                    load_query_fragments(query_fragments, 4 * (row_tile * steps + step), shared, warp_row, row_tile, step, lane)
        while first_key < visible_stop:
            cp_async_wait_group_0()
            cuda.syncthreads()  # this tile of K has arrived, and nobody reads the last tile of V any more
            copy_cache_tile(value_cache, block_table, kv_head, first_key, visible_start, visible_stop, shared, values_at)
            cp_async_commit_group()
            multiply_query_key(scores, query_fragments, shared, warp_row, lane)
            cp_async_wait_group_0()
            cuda.syncthreads()  # this tile of V has arrived, and nobody reads this tile of K any more
            next_key = int32(first_key + key_tile)
            if next_key < visible_stop:
                copy_cache_tile(key_cache, block_table, kv_head, next_key, visible_start, visible_stop, shared, keys_at)
            cp_async_commit_group()
            row_position = first_position + warp_row + lane // 4
            at_the_end = next_key > first_position + 1
            at_the_start = sliding_window > 0 and first_key <= first_position + query_tile - 1 - sliding_window
            if at_the_end or at_the_start:
                mask(scores, first_key, row_position, sliding_window, lane)
            fold_softmax(scores, maxima, sums, acc, scale)
            multiply_weights_values(acc, scores, shared, lane)
            first_key = next_key
        cp_async_wait_group_0()  # an asynchronous copy must not outlive its block
        store_rows(acc, sums, out, token, head, rows, warp_row, lane)

    return flash_attention_2_kernel, threads, shared_bytes


def attention(
    query,
    key_cache,
    value_cache,
    out,
    query_start,
    context_lens,
    block_tables,
    scale,
    sliding_window=0,
    max_query_len=None,
    workspace=None,
    stream=None,
    tiles=None,
):
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (query rows, keys, warps) of a block; the default suits the head_dim. float32 goes to flash_attention_2_float32.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    longest = query_len_bound(max_query_len, sizes)
    dtype = str(query.dtype)
    if dtype == "float32":
        flash_attention_2_float32.attention(*inputs, scale, sliding_window, max_query_len, stream=stream, tiles=tiles)
        return
    query_tile, key_tile, warps = tiles or tiles_for(sizes.head_dim, longest, sizes.heads, sizes.sequences)
    chosen, threads, shared_bytes = make_kernel(dtype, sizes.head_dim, sizes.block_size, query_tile, key_tile, warps)
    grid = (-(-longest // query_tile), sizes.heads, sizes.sequences)
    launch(chosen, grid, threads, (*inputs, float(scale * LOG2_E), int(sliding_window)), stream, shared_bytes)
