"""The attention variants on a paged cache: prompts in FLOP/s, decode steps in bytes per second.

Cache blocks are in random order, or there is one per sequence. Peers compute on the same keys and values, gathered beforehand into
contiguous arrays [sequences, KV heads, keys, head_dim].
"""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, FLOAT32, TB_S, TFLOP_S, KernelCase, Prepared, relative_error
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.reference import attention_reference

BLOCK_SIZE = 16
SAMPLE_ROWS = 32  # queries at each end of a sequence that are recomputed on the host
SOFT_CAP = 50.0  # attn_logit_softcapping of Gemma 2
PEERS = ("SDPA FlashAttention-2", "SDPA cuDNN")
LAYOUTS = ("contiguous", "ragged contiguous", "ragged")  # the cost of paging is the ratio of the last two
# (sequences, new tokens of each, keys) of verification steps, then (sequences, keys) of decode steps
VERIFICATION_SIZES = ((1, 5, 1024), (1, 16, 1024), (16, 5, 1024), (64, 5, 1024), (1, 5, 32768))
DECODE_SIZES = ((1, 1024), (1, 8192), (1, 32768), (1, 131072), (16, 1024), (16, 8192), (64, 1024), (64, 4096), (256, 1024))


def prefill_flops(sequences: int, tokens: int, heads: int, head_dim: int) -> int:
    """FLOPs of causal attention: the i-th query sees i keys, with 4 operations per element of a head (q . K and p . V)."""
    return 4 * heads * head_dim * sequences * (tokens * (tokens + 1) // 2)


def key_value_bytes(sequences: int, context: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of the keys and values of all sequences."""
    return 2 * sequences * context * kv_heads * head_dim * itemsize


def prefill_case(
    variant: str,
    sequences: int,
    tokens: int,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    dtype: np.dtype = BFLOAT16,
    contiguous: bool = False,
) -> KernelCase:
    """Causal attention of whole prompts; contiguous: one cache block per prompt."""
    work = prefill_flops(sequences, tokens, heads, head_dim)
    sizes = (sequences, tokens, tokens, heads, kv_heads, head_dim)
    return attention_case("prefill attention", variant, *sizes, dtype, TFLOP_S, work, layout="contiguous" if contiguous else "")


def ragged_lengths(sequences: int, context: int) -> np.ndarray:
    """Lengths from context / 8 to context in pseudo-random order, int [sequences]; the first is the longest."""
    return context - context * 7 * (np.arange(sequences) * 37 % sequences) // (8 * sequences)


def decode_case(
    variant: str,
    sequences: int,
    context: int,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    dtype: np.dtype = BFLOAT16,
    layout: str = "",
    peers: tuple[str, ...] = PEERS,
) -> KernelCase:
    """Attention of one new token per sequence.

    layout: "" for blocks of 16, "contiguous" for one block per sequence; "ragged" and "ragged contiguous" are the same with different
    lengths up to `context`, and have no peers.
    """
    ragged = layout.startswith("ragged")
    lengths = ragged_lengths(sequences, context) if ragged else np.full(sequences, context)
    work = key_value_bytes(1, int(lengths.sum()), kv_heads, head_dim, dtype.itemsize)
    sizes = (sequences, 1, context, heads, kv_heads, head_dim, dtype)
    return attention_case("decode attention", variant, *sizes, TB_S, work, lengths, layout, () if ragged else peers)


def verification_case(variant: str, sequences: int, tokens: int, context: int) -> KernelCase:
    """Attention of a few new tokens per sequence, the newest and the drafts to verify, with the heads of decode_case."""
    heads, kv_heads, head_dim, dtype = 32, 8, 128, BFLOAT16
    work = key_value_bytes(sequences, context, kv_heads, head_dim, dtype.itemsize)
    sizes = (sequences, tokens, context, heads, kv_heads, head_dim, dtype)
    return attention_case("verification attention", variant, *sizes, TB_S, work, layout=f"{tokens} new", peers=())


def soft_capped_case(
    sequences: int, tokens: int, context: int, heads: int = 8, kv_heads: int = 4, head_dim: int = 256, dtype: np.dtype = BFLOAT16
) -> KernelCase:
    """Attention with Gemma 2's soft cap, by default with the heads of its 2B: prompts, or one new token for each sequence.

    Peers have no cap. Expected to be slower than flash_attention_2 by an exponential and a reciprocal per score.
    """
    sizes = (sequences, tokens, context, heads, kv_heads, head_dim, dtype)
    if tokens > 1:
        kind = ("prefill attention", TFLOP_S, prefill_flops(sequences, tokens, heads, head_dim))
    else:
        kind = ("decode attention", TB_S, key_value_bytes(sequences, context, kv_heads, head_dim, dtype.itemsize))
    benchmark, unit, work = kind
    return attention_case(benchmark, "soft_capped", *sizes, unit, work, layout=f"cap {SOFT_CAP:g}", peers=(), soft_cap=SOFT_CAP)


def block_tables_of(random, sets, sequences, blocks) -> np.ndarray:
    """Block tables, int32 [sets, sequences, blocks], with the blocks of a cache in random order."""
    return random.permutation(sets * sequences * blocks).astype(np.int32).reshape(sets, sequences, blocks)


def attention_case(
    benchmark, variant, sequences, tokens, context, heads, kv_heads, head_dim, dtype, unit, work, lengths=None, layout="", peers=PEERS,
    soft_cap=0.0,
) -> KernelCase:  # fmt: skip
    """The case of `tokens` new tokens per sequence, which has `context` keys, the new ones included, or its number in `lengths`.

    soft_cap: of the scores, 0 for none.
    """
    lengths = np.full(sequences, context) if lengths is None else lengths
    block_size = context if layout.endswith("contiguous") else BLOCK_SIZE

    def prepare(ops, noise, sets):
        # one cache holds all sets, which have separate blocks
        tables = block_tables_of(noise.random, sets, sequences, -(-context // block_size))
        shape = (int(tables.max()) + 1, block_size, kv_heads, head_dim)
        key_cache, value_cache = noise.array(shape, dtype), noise.array(shape, dtype)
        query = noise.array((sequences * tokens, heads, head_dim), dtype)
        shared = dict(
            key_cache=ops.array(key_cache),
            value_cache=ops.array(value_cache),
            query_start=ops.array(np.arange(sequences + 1, dtype=np.int32) * tokens),
            context_lens=ops.array(lengths.astype(np.int32)),
        )
        queries = [query, *(noise.array(query.shape, dtype) for _ in range(sets - 1))]
        inputs = [
            dict(shared, query=ops.array(queries[i]), out=ops.empty(query.shape, dtype), block_tables=ops.array(tables[i]), context=context)
            for i in range(sets)
        ]
        module, scale = VARIANTS[variant], head_dim**-0.5
        options = dict(max_query_len=tokens) | (dict(soft_cap=soft_cap) if soft_cap else {})
        workspace = make_workspace(module.workspace_shapes(query, key_cache, tables[0]), ops.empty, ops.zeros)
        order = ("query", "key_cache", "value_cache", "out", "query_start", "context_lens", "block_tables")

        def launch(arrays):
            module.attention(*(arrays[name] for name in order), scale, workspace=workspace, stream=ops.stream, **options)

        expected = sampled_rows(query, key_cache, value_cache, tables[0], tokens, lengths, scale, soft_cap)
        return Prepared(
            [lambda arrays=arrays: launch(arrays) for arrays in inputs],
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[list(expected)], np.stack(list(expected.values()))),
        )

    set_bytes = key_value_bytes(sequences, context, kv_heads, head_dim, dtype.itemsize)
    set_bytes += 2 * sequences * tokens * heads * head_dim * dtype.itemsize  # the queries and the output
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {dtype.name}{layout and ', ' + layout}"
    peers = peers if dtype == BFLOAT16 else ()  # neither supports float32
    return KernelCase(
        "attention", benchmark, case, variant=variant, dtype=dtype, unit=unit, work=work, set_bytes=set_bytes, prepare=prepare, peers=peers
    )


def sampled_rows(query, key_cache, value_cache, block_tables, tokens, lengths, scale, soft_cap=0.0) -> dict[int, np.ndarray]:
    """{row of query: the reference's float32 [heads, head_dim]}, for rows at the ends of the first and last sequences."""
    rows, expected = min(tokens, SAMPLE_ROWS), {}
    for sequence in {0, len(block_tables) - 1}:
        for first in {0, tokens - rows}:
            start = sequence * tokens + first
            batch = [np.array([0, rows]), np.array([lengths[sequence] - tokens + first + rows]), block_tables[sequence : sequence + 1]]
            out = attention_reference(query[start : start + rows].astype(np.float32), key_cache, value_cache, *batch, scale, 0, soft_cap)
            expected.update(zip(range(start, start + rows), out, strict=True))
    return expected


def cases() -> list[KernelCase]:
    """All cases of attention, named sequences x tokens."""
    prefill = [prefill_case(variant, 1, 512) for variant in ("materialized", "flash_attention_1", "flash_attention_2")]
    prefill += [prefill_case("flash_attention_2", 4, 2048), prefill_case("flash_attention_2_float32", 1, 512, dtype=FLOAT32)]
    for sequences, tokens in ((16, 512), (4, 2048), (4, 4096), (1, 16384)):
        prefill += [prefill_case("flash_attention_3", sequences, tokens, head_dim=head_dim, contiguous=True) for head_dim in (64, 128)]
        prefill.append(prefill_case("flash_attention_3", sequences, tokens))
    prefill.append(prefill_case("fixed_split", 4, 2048))
    decode = [decode_case("materialized", 1, 1024), *(decode_case("fixed_split", *sizes) for sizes in ((1, 1024), (64, 1024), (1, 32768)))]
    decode += [verification_case(variant, *sizes) for sizes in VERIFICATION_SIZES for variant in ("fixed_split", "flash_attention_3")]
    decode += [decode_case("split_kv", sequences, context) for sequences, context in ((1, 1024), (1, 8192), (16, 1024), (64, 1024))]
    decode += [decode_case("split_tensor_core", *sizes, layout=layout) for sizes in DECODE_SIZES for layout in LAYOUTS]
    decode += [decode_case("split_tensor_core", sequences, context) for sequences, context in ((1, 1024), (64, 1024))]
    decode += [decode_case("split_unified_maximum", *sizes, layout="contiguous") for sizes in ((1, 8192), (64, 4096))]
    decode += [decode_case(variant, 1, 600, head_dim=64) for variant in ("split_kv", "split_tensor_core")]
    cases = [*prefill, *decode, soft_capped_case(4, 2048, 2048), soft_capped_case(16, 1, 1024)]
    return cases + [default_case(name) for name in VARIANTS.names() if name not in {case.variant for case in cases}]


def default_case(variant: str, tokens: int = 512, context: int = 1024, **heads) -> KernelCase:
    """The case of a variant without a case of its own: a prompt if it supports prompts, else a decode step."""
    if VARIANTS.entry(variant).takes_rows(tokens):
        return prefill_case(variant, 1, tokens, **heads)
    return decode_case(variant, 1, context, **heads)
