"""Attention as one would first write it: scores in memory, softmax in place, times V. The course begins with it.

    S = Q K^T          P = softmax(scale * S), row by row, over the visible keys          out = P V

is three kernels, one per formula. K is stored transposed, [sequences, kv_heads, head_dim, max_len], so that neighbouring threads, which
take neighbouring keys, read neighbouring elements.

FLOPs: 4 * heads * head_dim per visible (query, key) pair. Bytes: K, V and the query row once per pair (caches help). Each score is
written by the first kernel, read three times and written twice by the second, and read once by the third for all threads of a block:
4 * 7 bytes per pair. That is some 9 FLOPs per byte for head_dim 64, however large the caches: a GPU spends its time on the
scores and not on arithmetic. And T prompt tokens need T^2 scores per head.

Threads to data: scores, one thread per key; softmax, one block per row, with threads striding over the keys; P V, one thread per element
of head_dim. The launcher with the common signature first copies the paged K into a transposed one, with one thread per key.
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound, sizes_of
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

THREADS = 128


def workspace_shapes(query, key_cache, block_tables):
    """The transposed K and all scores, for the longest contexts that the block tables allow: name -> (shape, dtype)."""
    sizes = sizes_of(query, key_cache, block_tables)
    return {
        "key_transposed": ((sizes.sequences, sizes.kv_heads, sizes.head_dim, sizes.max_context_len), key_cache.dtype),
        "scores": ((sizes.tokens, sizes.heads, sizes.max_context_len), "float32"),
    }


@cuda.jit(device=True)
def row_and_keys(index, sequence, query_start, context_lens, sliding_window):
    """(token, first key, one past the last key) of the sequence's `index`-th new token; no keys if there is no such token."""
    token = query_start[sequence] + index
    query_len = query_start[sequence + 1] - query_start[sequence]
    if index >= query_len:
        return token, 0, 0
    position = context_lens[sequence] - query_len + index
    first = max(0, position - sliding_window + 1) if sliding_window > 0 else 0
    return token, first, position + 1


@functools.cache
def make_transpose_kernel(block_size):
    """The kernel that copies a paged K into a transposed one."""

    @kernel
    def transpose_keys_kernel(
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        block_tables,  # [sequences, max_blocks]
        context_lens,  # [sequences]
        key_transposed,  # [sequences, kv_heads, head_dim, max_len]
    ):
        key = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        kv_head, sequence = cuda.blockIdx.y, cuda.blockIdx.z
        if key < context_lens[sequence]:
            block = block_tables[sequence, uint32(key) // uint32(block_size)]
            for dim in range(key_cache.shape[3]):
                key_transposed[sequence, kv_head, dim, key] = key_cache[block, uint32(key) % uint32(block_size), kv_head, dim]

    return transpose_keys_kernel


@kernel
def scores_kernel(
    query,  # [tokens, heads, head_dim]
    key_transposed,  # [sequences, kv_heads, head_dim, max_len]
    scores,  # [tokens, heads, max_len]
    query_start,  # [sequences + 1]
    context_lens,  # [sequences]
    sliding_window,
):
    """S = Q K^T: one thread per score, for visible keys only."""
    heads = query.shape[1]
    key = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    sequence, head = cuda.blockIdx.z // heads, cuda.blockIdx.z % heads
    kv_head = kv_head_of(head, heads, key_transposed.shape[1])
    token, first, stop = row_and_keys(cuda.blockIdx.y, sequence, query_start, context_lens, sliding_window)
    # exercise: attention.scores
    if first <= key and key < stop:
        total = float32(0.0)
        for dim in range(query.shape[2]):
            total += float32(query[token, head, dim]) * float32(key_transposed[sequence, kv_head, dim, key])
        scores[token, head, key] = total
    # end exercise


@kernel
def softmax_kernel(
    scores,  # [tokens, heads, max_len]
    query_start,  # [sequences + 1]
    context_lens,  # [sequences]
    scale,  # includes log2(e): exponentials are base 2
    sliding_window,
):
    """P = softmax(scale * S) in place, over the keys that the block's row sees: maximum, sum of exponentials, division."""
    partial = cuda.shared.array(THREADS, float32)
    heads, thread = scores.shape[1], cuda.threadIdx.x
    sequence, head = cuda.blockIdx.z // heads, cuda.blockIdx.z % heads
    token, first, stop = row_and_keys(cuda.blockIdx.y, sequence, query_start, context_lens, sliding_window)
    if first >= stop:
        return

    maximum = float32(MINUS_INFINITY)
    key = first + thread
    while key < stop:
        maximum = max(maximum, scores[token, head, key])
        key += THREADS
    partial[thread] = maximum
    cuda.syncthreads()
    active = THREADS // 2
    while active > 0:
        if thread < active:
            partial[thread] = max(partial[thread], partial[thread + active])
        cuda.syncthreads()
        active //= 2
    shift = finite_or_zero(partial[0])
    cuda.syncthreads()  # all threads have read it

    total = float32(0.0)
    key = first + thread
    while key < stop:
        weight = ex2((scores[token, head, key] - shift) * scale)
        scores[token, head, key] = weight
        total += weight
        key += THREADS
    partial[thread] = total
    cuda.syncthreads()
    active = THREADS // 2
    while active > 0:
        if thread < active:
            partial[thread] += partial[thread + active]
        cuda.syncthreads()
        active //= 2
    inverse = reciprocal_or_zero(partial[0])

    key = first + thread
    while key < stop:
        scores[token, head, key] *= inverse
        key += THREADS


@functools.cache
def make_weighted_values_kernel(block_size):
    """The kernel that computes P V from the softmax weights and the paged V."""

    @kernel
    def weighted_values_kernel(
        scores,  # [tokens, heads, max_len], now softmax weights
        value_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        sliding_window,
    ):
        heads, dim = scores.shape[1], cuda.threadIdx.x
        sequence, head = cuda.blockIdx.z // heads, cuda.blockIdx.z % heads
        kv_head = kv_head_of(head, heads, value_cache.shape[2])
        token, first, stop = row_and_keys(cuda.blockIdx.y, sequence, query_start, context_lens, sliding_window)
        if token >= query_start[sequence + 1] or dim >= out.shape[2]:
            return
        # exercise: attention.weighted_values
        total = float32(0.0)
        for key in range(first, stop):
            block = block_tables[sequence, uint32(key) // uint32(block_size)]
            total += scores[token, head, key] * float32(value_cache[block, uint32(key) % uint32(block_size), kv_head, dim])
        out[token, head, dim] = total
        # end exercise

    return weighted_values_kernel


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
):
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    The workspace holds max_blocks * block_size scores per row and head: gigabytes for long contexts, the reason for the later kernels.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    longest = query_len_bound(max_query_len, sizes)
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables), query)
    key_transposed, scores = scratch["key_transposed"], scratch["scores"]
    keys, rows, lens = -(-sizes.max_context_len // THREADS), (longest, sizes.sequences * sizes.heads), (query_start, context_lens)
    transpose = make_transpose_kernel(sizes.block_size)
    launch(transpose, (keys, sizes.kv_heads, sizes.sequences), THREADS, (key_cache, block_tables, context_lens, key_transposed), stream)
    launch(scores_kernel, (keys, *rows), THREADS, (query, key_transposed, scores, *lens, int(sliding_window)), stream)
    launch(softmax_kernel, (1, *rows), THREADS, (scores, *lens, float(scale * LOG2_E), int(sliding_window)), stream)
    arguments = (scores, value_cache, out, *lens, block_tables, int(sliding_window))
    launch(make_weighted_values_kernel(sizes.block_size), (1, *rows), -(-sizes.head_dim // WARP) * WARP, arguments, stream)
