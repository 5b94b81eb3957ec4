"""Attention of one new token per sequence: check, trace and race it with `minllm race decode_attention.py`."""

import math

from numba import cuda, float32


@cuda.jit
def attention_kernel(q, k, v, out):  # q, out [sequences, heads, head_dim]; k, v [sequences, keys, kv_heads, head_dim]
    s, h, d = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x  # one block per head, one thread per element
    g = h // (q.shape[1] // k.shape[2])  # several query heads share a KV head
    largest, total, value = float32(-math.inf), float32(0), float32(0)
    for j in range(k.shape[1]):
        score = float32(0)
        for i in range(q.shape[2]):
            score += float32(q[s, h, i]) * float32(k[s, j, g, i])
        score /= math.sqrt(float32(q.shape[2]))
        new = max(largest, score)
        kept, weight = math.exp(largest - new), math.exp(score - new)
        total = total * kept + weight
        value = value * kept + weight * float32(v[s, j, g, d])
        largest = new
    out[s, h, d] = value / total


def decode_attention(q, k, v, out):
    """Launch the kernel; q, k, v and out are device arrays."""
    attention_kernel[q.shape[:2], q.shape[2]](q, k, v, out)
