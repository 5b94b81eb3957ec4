"""Quantise groups of recent tokens once each group is complete: keys by channel, values token by token.

    key codes, key scales     = quantize_by_channel(keys of positions G g to G g + G - 1)      a (scale, zero) for each channel
    value codes, value scales = quantize(value) of each of these tokens

for every group g of G = TOKEN_GROUP tokens that ends among a sequence's new tokens. The kernel reads the plain cache of recent tokens,
in blocks of one group each, and writes the paged cache; attention reads these tokens in full precision until they leave the
residual window (residual_window/reference.py).

A group of one KV head of D components of b bytes: about 10 FLOPs per element; 2 G D b bytes read and 2 G bytes_per_head written;
memory-bound. In 31 of 32 decode steps a row has nothing to do.

Threads to data: a block takes the keys, or the values, of one group and head; each thread takes eight neighbouring components of some
tokens (quantized_head.py). A channel's minimum and maximum are found by shuffles within warps, then through shared memory.
Source: Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", section 3.2.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.kv.quantized_arguments import check_aligned, check_quantized_caches
from minllm.kernels.kv.quantized_head import lanes_of, make_store_quantized, rounded_code
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.kernels.quantization.lanes import EACH, make_load_each, pack_nibbles_of
from minllm.ptx import pack_f16x2, rcp_rn, store_32, unpack_f16x2
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP

THREADS = 128
WARPS = THREADS // WARP


def quantize_groups_reference(
    recent_key, recent_value, key_cache, value_cache, query_start, context_lens, block_tables, recent_lens, recent_tables
):  # fmt: skip
    """Write the groups that the new tokens completed into the QuantizedCaches, in place; arguments as in `quantize_groups`."""
    block_size = key_cache.shape[1]
    for b, context_len in enumerate(np.asarray(context_lens).tolist()):
        first = max(0, context_len - int(query_start[b + 1] - query_start[b]))  # a padding row has a context of 0
        recent_start = context_len - int(recent_lens[b])
        for position in range(first // TOKEN_GROUP * TOKEN_GROUP, context_len - TOKEN_GROUP + 1, TOKEN_GROUP):
            group = recent_tables[b, (position - recent_start) // TOKEN_GROUP]
            slot = block_tables[b, position // block_size] * block_size + position % block_size
            key_cache.put_groups(np.array([slot]), recent_key[group][None])
            value_cache.put(slot + np.arange(TOKEN_GROUP), recent_value[group])


@functools.cache
def quantize_groups_kernel(dtype, kv_format, block_size):
    """The kernel for recent tokens of `dtype`; grid (groups of a sequence, KV heads of keys and then of values, sequences)."""
    head_dim, lanes = kv_format.head_dim, lanes_of(kv_format.head_dim)
    rows = min(TOKEN_GROUP, THREADS // lanes)  # tokens side by side
    tokens, channels, last = TOKEN_GROUP // rows, lanes * EACH, head_dim // EACH - 1
    held_count, shared_shape = tokens * EACH, (2, WARPS, channels)
    code_bytes, levels, inverse_levels = kv_format.code_bytes, kv_format.levels, 1 / kv_format.levels
    load_components, store_quantized = make_load_each(dtype), make_store_quantized(kv_format, block_size)

    @cuda.jit(device=True)
    def ranges_of_channels(held, low, high):
        """The minimum and maximum of each of this thread's channels over all tokens of the group; the whole block must call it."""
        shared = cuda.shared.array(shared_shape, float32)
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        for k in range(EACH):
            low[k], high[k] = held[k], held[k]
            for i in range(1, tokens):
                low[k], high[k] = min(low[k], held[i * EACH + k]), max(high[k], held[i * EACH + k])
            distance = 16
            while distance >= lanes:
                low[k] = min(low[k], cuda.shfl_xor_sync(ALL_LANES, low[k], distance))
                high[k] = max(high[k], cuda.shfl_xor_sync(ALL_LANES, high[k], distance))
                distance >>= 1
            if lane < lanes:
                shared[0, warp, lane * EACH + k], shared[1, warp, lane * EACH + k] = low[k], high[k]
        cuda.syncthreads()
        for k in range(EACH):
            for other in range(WARPS):
                low[k] = min(low[k], shared[0, other, lane % lanes * EACH + k])
                high[k] = max(high[k], shared[1, other, lane % lanes * EACH + k])

    @cuda.jit(device=True)
    def store_channels(codes, scales, slot, kv_head, lane, row, held, stores):
        """Store the codes of this thread's tokens, from `slot` + row on; threads of row 0 also store the pairs of their channels."""
        low, high = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        ranges_of_channels(held, low, high)
        block, offset = slot // uint32(block_size), slot % uint32(block_size)
        head_row = (int64(block) * codes.shape[1] + kv_head) * block_size + offset
        inverses, bits = cuda.local.array(EACH, float32), cuda.local.array(EACH, uint32)
        for k in range(EACH):
            pair = pack_f16x2((high[k] - low[k]) * float32(inverse_levels), low[k])
            scale, low[k] = unpack_f16x2(pair)
            inverses[k] = rcp_rn(scale) if scale > float32(0) else float32(0)
            if stores and row == 0:
                store_32(scales, (head_row // TOKEN_GROUP * head_dim + lane * EACH + k) * 2, pair)
        for i in range(tokens):
            for k in range(EACH):
                bits[k] = rounded_code(held[i * EACH + k], low[k], inverses[k], float32(levels))
            if stores:
                store_32(codes, (head_row + i * rows + row) * code_bytes + lane * (EACH // 2), pack_nibbles_of(bits))

    @kernel(dependent_launch=True)
    def quantize_groups_kernel(
        recent_key,  # [recent blocks, TOKEN_GROUP, kv_heads, head_dim]
        recent_value,
        key_codes,  # [num_blocks, kv_heads, block_size, code_bytes]
        key_scales,  # [num_blocks, kv_heads, block_size / TOKEN_GROUP, head_dim, 2]
        value_codes,
        value_scales,  # [num_blocks, kv_heads, block_size, groups, 2]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        recent_lens,  # [sequences]
        recent_tables,  # [sequences, recent blocks]
    ):
        wait_for_predecessors()
        sequence, kv_heads = cuda.blockIdx.z, key_codes.shape[1]
        context_len = context_lens[sequence]
        first = int32(context_len - (query_start[sequence + 1] - query_start[sequence]))
        position = int32((first // TOKEN_GROUP + cuda.blockIdx.x) * TOKEN_GROUP)
        if position < 0 or position + TOKEN_GROUP > context_len:  # position is negative for a padding row
            return
        is_key = cuda.blockIdx.y < kv_heads
        kv_head = cuda.blockIdx.y if is_key else cuda.blockIdx.y - kv_heads
        lane, row = cuda.threadIdx.x % uint32(lanes), cuda.threadIdx.x // uint32(lanes)
        component = min(lane, uint32(last)) * EACH
        group = recent_tables[sequence, (position - (context_len - recent_lens[sequence])) // TOKEN_GROUP]
        recent = recent_key if is_key else recent_value
        values, held = cuda.local.array(EACH, float32), cuda.local.array(held_count, float32)
        for i in range(tokens):
            load_components(recent, ((int64(group) * TOKEN_GROUP + i * rows + row) * kv_heads + kv_head) * head_dim + component, values)
            for k in range(EACH):
                held[i * EACH + k] = values[k]
        slot = uint32(block_tables[sequence, position // block_size] * block_size + position % block_size)
        if is_key:
            store_channels(key_codes, key_scales, slot, kv_head, lane, row, held, lane <= last)
            return
        for i in range(tokens):
            for k in range(EACH):
                values[k] = held[i * EACH + k]
            store_quantized(value_codes, value_scales, slot + i * rows + row, kv_head, lane, values, lane <= last)

    return quantize_groups_kernel


def quantize_groups(
    recent_key, recent_value, key_cache, value_cache, query_start, context_lens, block_tables, recent_lens, recent_tables,
    max_query_len=1, stream=None,
):  # fmt: skip
    """Write the groups that a batch's new tokens completed into QuantizedCaches with keys quantised by channel.

    recent_key, recent_value: [blocks, TOKEN_GROUP, kv_heads, head_dim], float32, float16 or bfloat16, which already hold the new tokens;
    query_start int32 [B + 1], context_lens int32 [B] (0 for padding), block_tables int32 [B, max_blocks] as in attention; recent_lens int32
    [B] and recent_tables int32 [B, blocks]: where the newest tokens of each sequence lie (residual_window/reference.py), including those of
    every completed group. max_query_len: a bound on the new tokens of one sequence.

    Tables and lengths are not checked. Raises KernelArgumentError for shapes, dtypes, alignment and caches with keys by token.
    """
    check_quantized_caches(key_cache, value_cache, None, key_cache.format.head_dim)
    check(
        key_cache.by_channel, f"the keys of a cache in {key_cache.format.name} are quantised token by token, when they come: append does it"
    )
    num_blocks, block_size, kv_heads, head_dim = key_cache.shape
    sequences = context_lens.shape[0]
    check_array("recent_key", recent_key, FLOAT_DTYPES, blocks=None, tokens=TOKEN_GROUP, kv_heads=kv_heads, head_dim=head_dim)
    blocks = recent_key.shape[0]
    check_array("recent_value", recent_value, (recent_key.dtype,), blocks=blocks, tokens=TOKEN_GROUP, kv_heads=kv_heads, head_dim=head_dim)
    check_array("query_start", query_start, INDEX_DTYPES, sequences_and_1=sequences + 1)
    check_array("context_lens", context_lens, INDEX_DTYPES, sequences=sequences)
    check_array("block_tables", block_tables, INDEX_DTYPES, sequences=sequences, max_blocks=None)
    check_array("recent_lens", recent_lens, INDEX_DTYPES, sequences=sequences)
    check_array("recent_tables", recent_tables, INDEX_DTYPES, sequences=sequences, blocks=None)
    check(max_query_len >= 1, f"max_query_len is {max_query_len}; it must be at least 1")
    check_aligned(recent_key=recent_key, recent_value=recent_value)
    chosen = quantize_groups_kernel(recent_key.dtype, key_cache.format, block_size)
    arrays = (recent_key, recent_value, key_cache.codes, key_cache.scales, value_cache.codes, value_cache.scales)
    batch = (query_start, context_lens, block_tables, recent_lens, recent_tables)
    launch(chosen, (ceil_div(max_query_len, TOKEN_GROUP), 2 * kv_heads, sequences), THREADS, (*arrays, *batch), stream)
