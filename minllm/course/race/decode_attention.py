"""The race of decode attentions: decode_attention(q, k, v, out), one new token per sequence."""

import numpy as np

from minllm.course.race.contest import Case, Contest, in_float64
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace

LADDER = ("materialized", "split_kv", "split_tensor_core")


def inputs(size, dtype, noise, spread):
    """q [sequences, heads, head_dim]; k and v [sequences, keys, kv_heads, head_dim]."""
    sequences, keys, heads, kv_heads, head_dim = size
    q = noise.array((sequences, heads, head_dim), dtype, spread)
    return dict(q=q, **{name: noise.array((sequences, keys, kv_heads, head_dim), dtype) for name in "kv"})


def attended(q, k, v, scale, kv_head_of):
    """softmax(scale * q k) v for each query head, [sequences, heads, head_dim]."""
    chosen = [kv_head_of(head, q.shape[1], k.shape[2]) for head in range(q.shape[1])]
    scores = scale * np.einsum("shd,skhd->shk", q, k[:, :, chosen])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("shk,skhd->shd", weights, v[:, :, chosen])


def grouped(head, heads, kv_heads):
    """The KV head that a query head reads."""
    return head // (heads // kv_heads)


def reference(arrays):
    """The right output, float32 [sequences, heads, head_dim]."""
    q, k, v = (np.asarray(array).astype(np.float32) for array in arrays.values())
    return attended(q, k, v, q.shape[2] ** -0.5, grouped)


def suspects(arrays):
    """Results of likely mistakes."""
    q, k, v = in_float64(arrays)
    scale = q.shape[2] ** -0.5
    yield "the scores are not scaled by 1 / sqrt(head_dim).", attended(q, k, v, 1.0, grouped)
    yield (
        "query head h reads KV head h // (heads // kv_heads), not h % kv_heads.",
        attended(q, k, v, scale, lambda head, heads, kv_heads: head % kv_heads),
    )
    if k.shape[1] > 1:
        yield "the last key is missing: the new token sees all keys.", attended(q, k[:, :-1], v[:, :-1], scale, grouped)
    yield "all keys have the same weight: the scores are not used.", attended(0 * q, k, v, scale, grouped)


def as_cache(arrays, ops):
    """The arrays under the names of a paged cache, in which each sequence has one block."""
    sequences, keys = arrays["k"].shape[:2]
    return dict(
        query=arrays["q"],
        key_cache=arrays["k"],
        value_cache=arrays["v"],
        out=arrays["out"],
        query_start=ops.array(np.arange(sequences + 1, dtype=np.int32)),
        context_lens=ops.array(np.full(sequences, keys, np.int32)),
        block_tables=ops.array(np.arange(sequences, dtype=np.int32)[:, None]),
    )


def launcher(name, arrays, ops):
    """A call that launches one rung of the ladder."""
    module, cache = VARIANTS[name], as_cache(arrays, ops)
    shapes = module.workspace_shapes(cache["query"], cache["key_cache"], cache["block_tables"])
    workspace = make_workspace(shapes, ops.empty, ops.zeros)
    scale = arrays["q"].shape[2] ** -0.5
    return lambda: module.attention(*cache.values(), scale, max_query_len=1, workspace=workspace, stream=ops.stream)


DECODE_ATTENTION = Contest(
    name="decode_attention",
    equation="out[s, h] = sum over keys j of softmax_j(q[s, h] . k[s, j, g] / sqrt(head_dim)) v[s, j, g], g = h // (heads // kv_heads)",
    parameters=dict(
        q="[sequences, heads, head_dim]",
        k="[sequences, keys, kv_heads, head_dim]",
        v="[sequences, keys, kv_heads, head_dim]",
        out="[sequences, heads, head_dim]",
    ),
    axes=("sequence", "head", "element"),
    size_names=("sequences", "keys", "heads", "kv_heads", "head_dim"),
    cases=(
        Case("one key", "its weight is 1: out is v.", (1, 1, 1, 1, 16)),
        Case("5 keys", "fewer keys than a warp has lanes.", (1, 5, 1, 1, 32)),
        Case("2 sequences, 33 keys, 4 heads", "a warp and one more key; each head has its own K and V.", (2, 33, 4, 4, 32)),
        Case("8 heads share 2 KV heads", "grouped-query attention.", (1, 70, 8, 2, 32)),
        Case("head_dim 40, 129 keys", "nothing is a power of two.", (3, 129, 3, 1, 40)),
        Case("large scores", "exp overflows unless the maximum is subtracted.", (1, 40, 2, 1, 32), spread=100.0),
    ),
    traced_size=(1, 48, 2, 1, 16),
    raced_size=(16, 4096, 32, 8, 128),
    inputs=inputs,
    out_shape=lambda arrays: arrays["q"].shape,
    reference=reference,
    suspects=suspects,
    flops=None,
    rivals=LADDER,
    why_not=lambda name, size, dtype, capability: VARIANTS.why_not(name, 1, dtype, capability),
    launcher=launcher,
    peers=lambda dtype: ("SDPA FlashAttention-2", "SDPA cuDNN") if dtype.itemsize == 2 else (),  # neither supports float32
    peer_inputs=lambda arrays, ops: dict(as_cache(arrays, ops), context=arrays["k"].shape[1]),
)
