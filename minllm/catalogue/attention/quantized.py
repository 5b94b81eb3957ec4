"""A launch of an attention variant over a paged cache of codes, whose unused slots hold codes as well."""

import numpy as np

from minllm.catalogue.attention.paged import BLOCK_SIZE, LENS, SLACK, batch_of
from minllm.catalogue.kv import quantized_arrays, quantized_caches
from minllm.catalogue.launch import Launch, describes, returns
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.quantization.formats import kv_format

FINITE = 0xBF  # without the highest bit of an exponent, no code of fp8 is NaN or infinite
WEIGHTS = 2.0**-10  # rounding of the softmax weights, which are float16 whatever the queries are


@describes
def quantized_attention(
    variant, query_lens, context_lens, name, heads=4, kv_heads=2, head_dim=64, dtype=BFLOAT16, block_size=BLOCK_SIZE, **options
):
    """As paged.attention, over codes of a format that all may occur; options: those of the variant's launcher."""
    found, scale, module = kv_format(name, head_dim), head_dim**-0.5, VARIANTS[variant]

    def arrays(noise):
        blocks, lens = batch_of(noise, query_lens, context_lens, block_size)
        caches = quantized_arrays(noise, found, blocks, block_size, kv_heads, found.keys_by_channel)
        for array in caches.values():
            if array.dtype == np.uint8:
                array[:] = noise.random.integers(0, 256, array.shape) & (FINITE if found.is_float else 255)
            elif not found.is_float:
                array[:] = noise.random.uniform(0.005, 0.02, array.shape)
        rows = (sum(query_lens), heads, head_dim)
        return dict(query=noise.array(rows, dtype), **caches, out=noise.unwritten(rows, dtype), **lens)

    def call(ops, query, out, query_start, context_lens, block_tables, **caches):
        lens = query_start, context_lens, block_tables
        chosen = dict(max_query_len=max(1, *query_lens), stream=ops.stream, **options)
        module.attention(query, *quantized_caches(found, caches, found.keys_by_channel), out, *lens, scale, **chosen)

    def reference(query, out, query_start, context_lens, block_tables, **caches):
        key_cache, value_cache = quantized_caches(found, caches, found.keys_by_channel)
        return attention_reference(query, key_cache, value_cache, query_start, context_lens, block_tables, scale)

    return Launch(arrays, call, returns(("out",), reference), moved={}, indices=LENS, slack=max(SLACK[dtype], WEIGHTS))
