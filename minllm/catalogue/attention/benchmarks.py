"""The measured rows of attention on a paged cache, named sequences x keys: prompts in FLOP/s, decode steps in bytes per second.

Cache blocks are in random order, or there is one per sequence. Peers compute on the same keys and values, gathered beforehand into
contiguous arrays [sequences, KV heads, keys, head_dim].
"""

import numpy as np

from minllm.catalogue.attention.paged import BLOCK_SIZE, attention
from minllm.catalogue.launch import TB_S, TFLOP_S, Measured, for_tuning
from minllm.catalogue.rows import BFLOAT16, FLOAT32
from minllm.kernels.attention import VARIANTS

SAMPLE = 16  # rows that are computed again on the host
SOFT_CAP = 50.0  # attn_logit_softcapping of Gemma 2
PEERS = ("SDPA FlashAttention-2", "SDPA cuDNN")
PROMPT_SIZES = ((16, 512), (4, 2048), (4, 4096), (1, 16384))  # (prompts, tokens of each)
# (sequences, new tokens of each, keys) of verification steps, then (sequences, keys) of decode steps
VERIFICATION_SIZES = ((1, 5, 1024), (1, 16, 1024), (16, 5, 1024), (64, 5, 1024), (1, 5, 32768))
DECODE_SIZES = ((1, 1024), (1, 8192), (1, 32768), (1, 131072), (16, 1024), (16, 8192), (64, 1024), (64, 4096), (256, 1024))


def prefill_flops(sequences: int, tokens: int, heads: int, head_dim: int) -> int:
    """FLOPs of causal attention: the i-th query sees i keys, with 4 operations per element of a head (q . K and p . V)."""
    return 4 * heads * head_dim * sequences * (tokens * (tokens + 1) // 2)


def key_value_bytes(sequences: int, context: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of the keys and values of all sequences."""
    return 2 * sequences * context * kv_heads * head_dim * itemsize


def ragged_lengths(sequences: int, context: int) -> np.ndarray:
    """Lengths from context / 8 to context in pseudo-random order, int [sequences]; the first is the longest."""
    return context - context * 7 * (np.arange(sequences) * 37 % sequences) // (8 * sequences)


def measured():
    """All rows; of a variant without a row of its own a prompt if it supports prompts, else a decode step."""
    rows = [*prompts(), *steps(), *for_tuning([*prompts_for_tuning(), *steps_for_tuning()])]
    yield from rows
    others = [name for name in VARIANTS.names() if name not in {row.variant for row in rows}]
    small = (prompt(name, 1, 512) if VARIANTS.entry(name).takes_rows(512) else step(name, 1, 1024) for name in others)
    yield from for_tuning(small)


def prompts():
    """The record's rows of whole prompts."""
    for variant in ("materialized", "flash_attention_1", "flash_attention_2"):
        yield prompt(variant, 1, 512)
    yield prompt("flash_attention_2", 4, 2048)
    yield prompt("flash_attention_3", 4, 2048)
    for sequences, tokens in PROMPT_SIZES:
        yield prompt("flash_attention_3", sequences, tokens, layout="contiguous")


def steps():
    """The record's rows of decode steps and verification."""
    yield step("materialized", 1, 1024)
    yield from (step("split_kv", *sizes) for sizes in ((1, 1024), (1, 8192), (64, 1024)))
    yield from (step("split_tensor_core", *sizes, layout="contiguous") for sizes in DECODE_SIZES)
    yield from (step("split_tensor_core", *sizes) for sizes in ((1, 1024), (64, 1024)))
    yield step("split_tensor_core", 64, 4096, layout="ragged")
    yield step("split_unified_maximum", 64, 4096, layout="contiguous")
    yield verification("fixed_split", 16, 5, 1024)


def prompts_for_tuning():
    """Other prompts: heads of 64, blocks, float32, soft caps."""
    yield prompt("flash_attention_2_float32", 1, 512, dtype=FLOAT32)
    for sequences, tokens in PROMPT_SIZES:
        yield prompt("flash_attention_3", sequences, tokens, layout="contiguous", head_dim=64)
        if (sequences, tokens) != (4, 2048):
            yield prompt("flash_attention_3", sequences, tokens)
    yield prompt("fixed_split", 4, 2048)
    yield prompt("soft_capped", 4, 2048, f"cap {SOFT_CAP:g}", (), heads=8, kv_heads=4, head_dim=256, soft_cap=SOFT_CAP)


def steps_for_tuning():
    """Other steps: the fixed order, contexts of different lengths, verification of other sizes, heads of 64, soft caps."""
    yield from (step("fixed_split", *sizes) for sizes in ((1, 1024), (64, 1024), (1, 32768)))
    yield from (verification("fixed_split", *sizes) for sizes in VERIFICATION_SIZES if sizes != (16, 5, 1024))
    yield from (verification("flash_attention_3", *sizes) for sizes in VERIFICATION_SIZES)
    yield step("split_kv", 16, 1024)
    for sizes in DECODE_SIZES:
        for layout in ("ragged contiguous", "ragged"):  # the cost of paging is their ratio
            if (layout, *sizes) != ("ragged", 64, 4096):
                yield step("split_tensor_core", *sizes, layout=layout)
    yield step("split_unified_maximum", 1, 8192, layout="contiguous")
    for variant in ("split_kv", "split_tensor_core"):
        yield step(variant, 1, 600, head_dim=64)
    yield step("soft_capped", 16, 1024, f"cap {SOFT_CAP:g}", (), heads=8, kv_heads=4, head_dim=256, soft_cap=SOFT_CAP)


def prompt(variant, sequences, tokens, layout="", peers=PEERS, heads=32, head_dim=128, **options):
    """Causal attention of whole prompts; layout "contiguous": one cache block per prompt."""
    work = prefill_flops(sequences, tokens, heads, head_dim)
    options |= dict(heads=heads, head_dim=head_dim)
    return row("prefill attention", variant, tokens, [tokens] * sequences, TFLOP_S, work, layout, peers, **options)


def step(variant, sequences, context, layout="", peers=PEERS, **options):
    """Attention of one new token per sequence.

    layout: "" for blocks of 16, "contiguous" for one block per sequence; "ragged" and "ragged contiguous" are the same with different
    lengths up to `context`, and have no peers.
    """
    ragged = layout.startswith("ragged")
    lengths = ragged_lengths(sequences, context).tolist() if ragged else [context] * sequences
    return of_caches("decode attention", variant, 1, lengths, layout, () if ragged else peers, **options)


def verification(variant, sequences, tokens, context):
    """Attention of the last token and its drafts, `tokens` per sequence, over `context` keys."""
    return of_caches("verification attention", variant, tokens, [context] * sequences, layout=f"{tokens} new")


def of_caches(benchmark, variant, tokens, lengths, layout, peers=(), kv_heads=8, head_dim=128, **options):
    """A row in bytes per second, those of all keys and values."""
    work = key_value_bytes(1, sum(lengths), kv_heads, head_dim, BFLOAT16.itemsize)
    options |= dict(kv_heads=kv_heads, head_dim=head_dim)
    return row(benchmark, variant, tokens, lengths, TB_S, work, layout, peers, **options)


def row(
    benchmark, variant, tokens, lengths, unit, work, layout, peers, heads=32, kv_heads=8, head_dim=128, dtype=BFLOAT16, **options
) -> Measured:  # fmt: skip
    """The row of `tokens` new tokens per sequence, which has its number of keys in `lengths`, the new ones included."""
    sequences, context = len(lengths), max(lengths)
    block_size = context if layout.endswith("contiguous") else BLOCK_SIZE
    launch = attention(variant, (tokens,) * sequences, tuple(lengths), heads, kv_heads, head_dim, dtype, block_size, **options)
    set_bytes = key_value_bytes(sequences, context, kv_heads, head_dim, dtype.itemsize)
    set_bytes += 2 * sequences * tokens * heads * head_dim * dtype.itemsize  # the queries and the output
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {dtype.name}{layout and ', ' + layout}"
    peers = peers if dtype == BFLOAT16 else ()  # neither supports float32
    return Measured(launch, variant, case, benchmark, unit=unit, work=work, set_bytes=set_bytes, peers=peers, sample=SAMPLE)
