"""FlashAttention-1: online softmax with the outer loop over keys, Algorithm 1 of the first FlashAttention paper.

A prompt of T tokens has T^2 scores per head; writing and reading them takes more time than computing them. FlashAttention
(Dao et al., arXiv 2205.14135, Algorithm 1) never writes them: each tile of K and V is loaded into shared memory once; then every query
row is loaded, the tile is folded into the row's state, and the state is written back to memory. A row's state is its maximum m, its sum l
and its output o, kept divided by l here as in the paper:

    m' = max(m, max_j s_j)     l' = l exp(m - m') + sum_j exp(s_j - m')     o' = (l exp(m - m') o + sum_j exp(s_j - m') v_j) / l'

FLOPs: 4 * heads * head_dim per visible (query, key) pair. Bytes: K and V once per query head, and per row and visible tile of keys the
query and the state: (itemsize + 8) * head_dim + 16; the initial zeros of the state and the output take
(2 * itemsize + 4) * head_dim + 8 per row. With tiles of 32 keys the intensity is about 4 * 32 / (itemsize + 8) = 12.8 FLOPs per byte
for 16-bit types. FlashAttention-2 removes these trips to memory, and is parallel over query tiles as well as heads and sequences.

Threads to data: grid (heads, sequences). The lanes of a warp are the keys of a tile while scores are computed, and the
elements of head_dim while the output is; each warp takes every WARPS-th row. Rows of K are padded by one float, so that 32 keys lie
in 32 different banks.
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, sizes_of
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP, warp_max, warp_sum

KEY_TILE = WARP  # one key per lane
WARPS = 8


def workspace_shapes(query, key_cache, block_tables):
    """The rows' states, stored in memory between tiles: name -> (shape, dtype)."""
    sizes = sizes_of(query, key_cache, block_tables)
    return {
        "row_max": ((sizes.tokens, sizes.heads), "float32"),  # base 2
        "row_sum": ((sizes.tokens, sizes.heads), "float32"),
        "row_out": ((sizes.tokens, sizes.heads, sizes.head_dim), "float32"),
    }


@functools.cache
def make_kernel(head_dim, block_size, warps=WARPS):
    """(kernel, threads per block, bytes of dynamic shared memory)."""
    threads = WARP * warps
    key_stride = head_dim + 1
    values_at = KEY_TILE * key_stride  # shared memory, in floats: the K tile, the V tile, and a query row per warp
    queries_at = values_at + KEY_TILE * head_dim
    shared_bytes = 4 * (queries_at + warps * head_dim)

    @cuda.jit(device=True)
    def load_tile(cache, block_tables, sequence, kv_head, first_key, visible_stop, shared, at, stride):
        """Load keys (or values) first_key to first_key + KEY_TILE into shared memory as float32; zeros from visible_stop on."""
        i = cuda.threadIdx.x
        while i < KEY_TILE * head_dim:
            key, dim = i // head_dim, i % head_dim
            number = float32(0.0)
            position = first_key + key
            if position < visible_stop:
                block = block_tables[sequence, uint32(position) // uint32(block_size)]
                number = float32(cache[block, uint32(position) % uint32(block_size), kv_head, dim])
            shared[at + key * stride + dim] = number
            i += threads

    @kernel
    def flash_attention_1_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        row_max,  # [tokens, heads]
        row_sum,  # [tokens, heads]
        row_out,  # [tokens, heads, head_dim]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, float32, alignment=128)
        head, sequence = cuda.blockIdx.x, cuda.blockIdx.y
        kv_head = kv_head_of(head, query.shape[1], key_cache.shape[2])
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        start, stop = query_start[sequence], query_start[sequence + 1]
        context_len = context_lens[sequence]
        first_position = context_len - (stop - start)  # position of the sequence's first new token

        token = start + warp  # lines 2 and 3 of the algorithm: the empty state
        while token < stop:
            dim = lane
            while dim < head_dim:
                row_out[token, head, dim] = float32(0.0)
                out[token, head, dim] = float32(0.0)  # the final value of a row that sees no key
                dim += WARP
            if lane == 0:
                row_max[token, head] = float32(MINUS_INFINITY)
                row_sum[token, head] = float32(0.0)
            token += warps

        first_key = max(0, first_position - sliding_window + 1) if sliding_window > 0 else 0
        while first_key < context_len:
            cuda.syncthreads()  # all warps are done with the previous tile
            load_tile(key_cache, block_tables, sequence, kv_head, first_key, context_len, shared, 0, key_stride)
            load_tile(value_cache, block_tables, sequence, kv_head, first_key, context_len, shared, values_at, head_dim)
            cuda.syncthreads()
            token = start + warp
            while token < stop:
                last = first_position + token - start  # the row's own position, the last key that it sees
                first = last - sliding_window + 1 if sliding_window > 0 else 0
                if first_key <= last and first < first_key + KEY_TILE:
                    dim = lane
                    while dim < head_dim:
                        shared[queries_at + warp * head_dim + dim] = float32(query[token, head, dim])
                        dim += WARP
                    cuda.syncwarp()
                    score = float32(0.0)
                    for dim in range(head_dim):
                        score += shared[queries_at + warp * head_dim + dim] * shared[lane * key_stride + dim]
                    key = first_key + lane
                    score = score * scale if first <= key and key <= last else float32(MINUS_INFINITY)

                    # exercise: attention.flash_attention_1
                    old_max, old_sum = row_max[token, head], row_sum[token, head]
                    new_max = max(old_max, warp_max(score))
                    shift = finite_or_zero(new_max)
                    weight = ex2(score - shift)
                    kept = old_sum * ex2(old_max - shift)
                    new_sum = kept + warp_sum(weight)
                    inverse = float32(1.0) / new_sum if new_sum > float32(0.0) else float32(0.0)
                    # end exercise
                    for part in range((head_dim + WARP - 1) // WARP):
                        dim = lane + WARP * part
                        inside = dim < head_dim
                        total = kept * row_out[token, head, dim] if inside else float32(0.0)
                        for j in range(KEY_TILE):
                            key_weight = cuda.shfl_sync(ALL_LANES, weight, j)
                            if inside:
                                total += key_weight * shared[values_at + j * head_dim + dim]
                        if inside:
                            row_out[token, head, dim] = total * inverse
                            if last < first_key + KEY_TILE:  # this is the last tile that the row sees
                                out[token, head, dim] = total * inverse
                    cuda.syncwarp()  # every lane has read the old maximum and sum
                    if lane == 0:
                        row_max[token, head] = new_max
                        row_sum[token, head] = new_sum
                    cuda.syncwarp()
                token += warps
            first_key += KEY_TILE

    return flash_attention_1_kernel, threads, shared_bytes


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
    warps=WARPS,
):
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py."""
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables), query)
    states = (scratch["row_max"], scratch["row_sum"], scratch["row_out"])
    chosen, threads, shared_bytes = make_kernel(sizes.head_dim, sizes.block_size, warps)
    numbers = (float(scale * LOG2_E), int(sliding_window))
    arguments = (query, key_cache, value_cache, *states, out, query_start, context_lens, block_tables, *numbers)
    launch(chosen, (sizes.heads, sizes.sequences), threads, arguments, stream, shared_bytes)
