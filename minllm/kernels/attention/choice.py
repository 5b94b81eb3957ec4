"""The rules that choose the attention variant for a call.

                        decode step, one new token per sequence        prompts, whole or in chunks
    a plain cache       one short sequence on Hopper: split_cluster    16 bits, on Hopper: flash_attention_3
                        16 bits: split_tensor_core                     else flash_attention_2
                        float32: split_kv                              16 bits, up to FEW_TOKENS new ones: fixed_split
    a quantised cache   split_quantized                                fp8_e4m3, on Hopper: flash_attention_3_float8
                        blocks of broken chunks:                       else flash_attention_2_quantized
                        flash_attention_2_quantized

`choose` depends on what is the same in all layers: new tokens, dtype and GPU. It takes the fastest variant or, if that one cannot
serve the call, its fallback (variants.py). Launchers also see the arrays: flash_attention_3/prompts.py passes caches whose blocks TMA
cannot gather to FlashAttention-2, and split_tensor_core/decode_step.py passes a short sequence to split_cluster.
"""

import functools

from minllm.kernels.attention.variants import QUANTIZED, VARIANTS

FASTEST_STEP, FASTEST_FEW, FASTEST_PROMPT = "split_tensor_core", "fixed_split", "flash_attention_3"
FEW_TOKENS = 16  # the most new tokens per sequence for FASTEST_FEW: steps that verify drafts
FASTEST_QUANTIZED_STEP, FASTEST_QUANTIZED_PROMPT = "split_quantized", "flash_attention_2_quantized"
FASTEST_FLOAT8_PROMPT = "flash_attention_3_float8"


@functools.cache
def choose(max_query_len, dtype="bfloat16", capability=None):
    """Name of the fastest variant for a plain cache. capability: the GPU's; None for the simulator and for any GPU."""
    fastest = FASTEST_STEP if max_query_len == 1 else FASTEST_FEW if max_query_len <= FEW_TOKENS else FASTEST_PROMPT
    return VARIANTS.serving(fastest, max_query_len, str(dtype), capability)


def choose_quantized(max_query_len, key_cache, dtype="bfloat16", capability=None):
    """The same for a quantised cache. split_quantized needs a block's scales to fill whole 16-byte chunks."""
    whole_chunks = key_cache.format.is_float or key_cache.shape[1] % 4 == 0
    return FASTEST_QUANTIZED_STEP if max_query_len == 1 and whole_chunks else choose_prompt_of(key_cache.format.name, dtype, capability)


@functools.cache
def choose_prompt_of(form, dtype, capability):
    """Name of the fastest variant for prompts over a cache in a format."""
    fastest = FASTEST_FLOAT8_PROMPT if form == "fp8_e4m3" else FASTEST_QUANTIZED_PROMPT
    return VARIANTS.serving(fastest, FEW_TOKENS, str(dtype), capability, reads=QUANTIZED)
