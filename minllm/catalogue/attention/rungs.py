"""The launches of the first rungs: scores in memory, then online softmax with its state in memory."""

from minllm.catalogue.attention.paged import attention
from minllm.catalogue.launch import MachineCode
from minllm.catalogue.rows import DTYPES, FLOAT16, FLOAT32


def compiled():
    """All dtypes. Of the first rung's 128 threads per block 8 blocks are half of an SM's warps."""
    for dtype in DTYPES:
        steps = dict(transpose="transpose_keys", scores="scores", softmax="softmax", weighted_values="weighted_values")
        launch = attention("materialized", 9, 9, 32, 8, 128, dtype)
        for name, kernel in steps.items():
            if name != "softmax" or dtype == FLOAT32:  # scores are always float32
                yield MachineCode(f"attention/materialized/{name}/{dtype}", launch, blocks=8, kernel_name=f"{kernel}_kernel")
        for head_dim in (64, 128, 256):
            launch = attention("flash_attention_1", 9, 9, 32, 8, head_dim, dtype)
            yield MachineCode(f"attention/flash_attention_1/{head_dim}/{dtype}", launch, blocks=1)


def small():
    """Prompts of which formulas count the bytes; layers side by side."""
    short = dict(query_lens=(3, 0, 2), context_lens=(18, 4, 2), heads=2, kv_heads=1, head_dim=16, dtype=FLOAT16, block_size=8, layers=3)
    for variant, tokens, heads, kv_heads in (("materialized", 9, 4, 2), ("flash_attention_1", 35, 2, 1)):
        yield attention(variant, tokens, tokens, heads, kv_heads, 16)
        yield attention(variant, **short)
