"""A toy variant of attention: a file and a line in the table are all that a new variant takes (test_variants.py).

Grid (tokens, heads), a thread per element of head_dim: every thread computes all scores of its row and one element of the output.
"""

import math

from numba import cuda, float32, int32

from minllm.kernels.attention.common.arguments import check_arguments
from minllm.runtime.kernel import kernel, launch


@kernel
def toy_kernel(
    query,  # [tokens, heads, head_dim]
    key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
    value_cache,  # the same
    out,  # [tokens, heads, head_dim]
    query_start,  # [sequences + 1]
    context_lens,  # [sequences]
    block_tables,  # [sequences, max_blocks]
    scale,
    sliding_window,
):
    token, head, dim = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    kv_head = head // (query.shape[1] // key_cache.shape[2])
    sequence = int32(0)
    while query_start[sequence + 1] <= token:
        sequence += 1
    position = int32(context_lens[sequence] - query_start[sequence + 1] + token)
    key = int32(max(0, position - sliding_window + 1)) if sliding_window > 0 else int32(0)
    maximum, total, result = float32(-1e30), float32(0.0), float32(0.0)
    while key <= position:
        block, slot = block_tables[sequence, key // key_cache.shape[1]], key % key_cache.shape[1]
        score = float32(0.0)
        for i in range(query.shape[2]):
            score += float32(query[token, head, i]) * float32(key_cache[block, slot, kv_head, i])
        score *= scale
        higher = max(maximum, score)
        kept, weight = math.exp(maximum - higher), math.exp(score - higher)
        total = total * kept + weight
        result = result * kept + weight * float32(value_cache[block, slot, kv_head, dim])
        maximum = higher
        key += 1
    out[token, head, dim] = result / total if total > float32(0.0) else float32(0.0)


def workspace_shapes(query, key_cache, block_tables):
    """None."""
    return {}


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None,
):  # fmt: skip
    """As in kernels/attention/__init__.py."""
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    launch(toy_kernel, (sizes.tokens, sizes.heads), sizes.head_dim, (*inputs, float(scale), int(sliding_window)), stream)
