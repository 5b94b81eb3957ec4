"""Batches for the attention tests: what a case is, how its poisoned arrays are made, and the float64 oracle that judges the answer.

The arrays are hostile on purpose. Blocks are handed out in a shuffled order, and everything that a kernel has no business to use is NaN:
unused blocks of the cache, slots of used blocks beyond the context or before every row's sliding window, and the output before the kernel
ran, guard rows around it included.
"""

from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from minllm.catalogue.attention.paged import lengths
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.kv.layout import layer_of

GUARD_ROWS = 3  # rows of NaN before and after the output that must stay as they are


@dataclass(frozen=True)
class AttentionCase:
    """One ragged batch: sequence b brings query_lens[b] new tokens and sees context_lens[b] keys, the new ones included (0: padding)."""

    query_lens: tuple
    context_lens: tuple
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    sliding_window: int = 0
    dtype: object = field(default=np.float32)
    magnitude: float = 1.0  # scale of queries and keys: 100 gives logits of some 1e4 for head_dim 64

    @classmethod
    def of(cls, query_lens, context_lens, heads, kv_heads, head_dim, dtype, block_size=16, sliding_window=0, magnitude=1.0):
        """The case with the sizes of a launch of the catalogue."""
        return cls(lengths(query_lens), lengths(context_lens), heads, kv_heads, head_dim, block_size, sliding_window, dtype.type, magnitude)

    def with_dtype(self, dtype):
        """The same case in another dtype."""
        return replace(self, dtype=dtype)

    def __str__(self):
        window = f"-window{self.sliding_window}" if self.sliding_window else ""
        huge = f"-magnitude{self.magnitude:g}" if self.magnitude != 1 else ""
        lens = "+".join(f"{q}of{c}" for q, c in zip(self.query_lens, self.context_lens, strict=True))
        layout = f"heads{self.heads}x{self.kv_heads}-dim{self.head_dim}-block{self.block_size}"
        return f"{lens}-{layout}{window}{huge}-{np.dtype(self.dtype).name}"


@dataclass
class AttentionArrays:
    """The arrays of a case, as NumPy arrays; `guarded_out` holds `out` between its guard rows."""

    query: np.ndarray  # [T, heads, head_dim]
    key_cache: np.ndarray  # [num_blocks, block_size, kv_heads, head_dim]
    value_cache: np.ndarray
    query_start: np.ndarray  # int32 [B + 1]
    context_lens: np.ndarray  # int32 [B]
    block_tables: np.ndarray  # int32 [B, max_blocks]
    scale: float
    keys: list  # per sequence [context, kv_heads, head_dim]: the truth that the cache was filled from
    values: list
    guarded_out: np.ndarray  # [GUARD_ROWS + T + GUARD_ROWS, heads, head_dim], all NaN

    @property
    def out(self):
        return self.guarded_out[GUARD_ROWS:-GUARD_ROWS]


def make_arrays(case, seed=0, spare_blocks=3):
    """Random arrays for `case`, with NaN wherever nothing must be read."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(case.dtype)
    total = sum(case.query_lens)
    blocks = [-(-context // case.block_size) for context in case.context_lens]
    num_blocks = sum(blocks) + spare_blocks
    shape = (num_blocks, case.block_size, case.kv_heads, case.head_dim)
    key_cache, value_cache = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
    order = rng.permutation(num_blocks).astype(np.int32)
    block_tables = np.zeros((len(blocks), max(1, *blocks)), np.int32)  # entries beyond the context point at block 0: not ours to read
    keys, values, taken = [], [], 0
    for sequence, context in enumerate(case.context_lens):
        keys.append((case.magnitude * rng.standard_normal((context, case.kv_heads, case.head_dim))).astype(dtype))
        values.append(rng.standard_normal((context, case.kv_heads, case.head_dim)).astype(dtype))
        table = order[taken : taken + blocks[sequence]]
        taken += blocks[sequence]
        block_tables[sequence, : len(table)] = table
        position = np.arange(context)
        key_cache[table[position // case.block_size], position % case.block_size] = keys[-1]
        value_cache[table[position // case.block_size], position % case.block_size] = values[-1]
        if case.sliding_window:  # keys before the first row's window: an engine may have given their slots away
            left = position[: max(0, context - case.query_lens[sequence] - case.sliding_window + 1)]
            key_cache[table[left // case.block_size], left % case.block_size] = np.nan
            value_cache[table[left // case.block_size], left % case.block_size] = np.nan
    query = (case.magnitude * rng.standard_normal((total, case.heads, case.head_dim))).astype(dtype)
    return AttentionArrays(
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        query_start=np.concatenate([[0], np.cumsum(case.query_lens)]).astype(np.int32),
        context_lens=np.array(case.context_lens, np.int32),
        block_tables=block_tables,
        scale=float(case.head_dim**-0.5),
        keys=keys,
        values=values,
        guarded_out=np.full((total + 2 * GUARD_ROWS, case.heads, case.head_dim), np.nan, dtype),
    )


def oracle(case, arrays):
    """Attention in float64, row by row and KV head by KV head, from the unpaged keys and values: [T, heads, head_dim]."""
    out = np.zeros(arrays.query.shape, np.float64)
    row = 0
    for query_len, context, keys, values in zip(case.query_lens, case.context_lens, arrays.keys, arrays.values, strict=True):
        for i in range(query_len):
            position = context - query_len + i
            first = max(0, position - case.sliding_window + 1) if case.sliding_window else 0
            group = case.heads // case.kv_heads
            for kv_head in range(case.kv_heads if position >= 0 else 0):
                heads = slice(kv_head * group, (kv_head + 1) * group)
                seen_keys = keys[first : position + 1, kv_head].astype(np.float64)
                scores = arrays.query[row, heads].astype(np.float64) @ seen_keys.T * arrays.scale  # [group, keys]
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                seen_values = values[first : position + 1, kv_head].astype(np.float64)
                out[row, heads] = weights @ seen_values / weights.sum(axis=1, keepdims=True)
            row += 1
    return out


def torch_attention(case, arrays):
    """torch's scaled_dot_product_attention in the case's dtype, sequence by sequence, its explicit mask included; float64 [T, heads, d]."""
    import torch

    torch_dtype = {np.dtype(np.float32): torch.float32, np.dtype(np.float16): torch.float16}.get(np.dtype(case.dtype), torch.bfloat16)
    out = np.zeros(arrays.query.shape, np.float64)

    def to_torch(x):
        return torch.from_numpy(np.ascontiguousarray(x.astype(np.float32))).to(torch_dtype).transpose(0, 1)[None]

    for sequence, (query_len, context) in enumerate(zip(case.query_lens, case.context_lens, strict=True)):
        if context == 0 or query_len == 0:
            continue
        start = int(arrays.query_start[sequence])
        distance = (context - query_len + np.arange(query_len))[:, None] - np.arange(context)[None, :]
        visible = (distance >= 0) & (distance < (case.sliding_window or context + 1))
        rows = to_torch(arrays.query[start : start + query_len])
        keys, values = to_torch(arrays.keys[sequence]), to_torch(arrays.values[sequence])
        attended = torch.nn.functional.scaled_dot_product_attention(
            rows, keys, values, attn_mask=torch.from_numpy(visible), scale=arrays.scale, enable_gqa=case.heads != case.kv_heads
        )
        out[start : start + query_len] = attended[0].transpose(0, 1).double().numpy()
    return out


def allowed_error(case, arrays, expected):
    """Twice the largest error that torch makes in the same dtype, plus a rounding of the largest output (torch may be lucky).

    For float32 that is the rounding of the GPU's 2**x, of 2**-22, and of long sums.
    """
    rounding = {np.dtype(np.float32): 2.0**-19, np.dtype(np.float16): 2.0**-11, np.dtype(ml_dtypes.bfloat16): 2.0**-8}[np.dtype(case.dtype)]
    torch_error = np.abs(torch_attention(case, arrays) - expected).max(initial=0.0)
    return 2 * torch_error + rounding * np.abs(expected).max(initial=0.0)


def check_output(case, arrays, guarded_out):
    """Judge an output with its guard rows: the right numbers inside, nothing touched outside."""
    guards = np.concatenate([guarded_out[:GUARD_ROWS], guarded_out[-GUARD_ROWS:]]).astype(np.float32)
    assert np.isnan(guards).all(), "the kernel wrote outside of its output"
    out = guarded_out[GUARD_ROWS:-GUARD_ROWS].astype(np.float64)
    expected = oracle(case, arrays)
    assert not np.isnan(out).any(), f"{np.isnan(out).sum()} elements are NaN: not written, or poison was read"
    error = np.abs(out - expected).max(initial=0.0)
    allowed = allowed_error(case, arrays, expected)
    assert error <= allowed, f"largest error {error:.3g}, allowed {allowed:.3g} (twice torch's in {np.dtype(case.dtype).name})"


def among_layers(cache, layers, layer):
    """The cache [num_blocks, block_size, kv_heads, head_dim] as one layer of [num_blocks, block_size, layers, kv_heads, head_dim]; the
    other layers are NaN."""
    whole = np.full((*cache.shape[:2], layers, *cache.shape[2:]), np.nan, cache.dtype)
    whole[:, :, layer] = cache
    return whole


def run_variant(device, module, case, seed=0, workspace_options=None, layers=None, max_query_len=None, **options):
    """Run a variant's launcher on `device` with poisoned output and scratch, and judge what it wrote; returns the output.

    layers: (number, which) puts the caches among those of other layers, token by token. max_query_len: a bound; None: the longest query.
    """
    arrays = make_arrays(case, seed)
    on_device = {
        name: device.array(getattr(arrays, name))
        for name in ("query", "key_cache", "value_cache", "query_start", "context_lens", "block_tables")
    }
    if layers:
        for name in ("key_cache", "value_cache"):
            on_device[name] = layer_of(device.array(among_layers(getattr(arrays, name), *layers)), layers[1])
    guarded_out = device.array(arrays.guarded_out)
    shapes = module.workspace_shapes(arrays.query, arrays.key_cache, arrays.block_tables, **(workspace_options or {}))
    module.attention(
        *(on_device[name] for name in ("query", "key_cache", "value_cache")),
        guarded_out[GUARD_ROWS : GUARD_ROWS + len(arrays.query)],
        *(on_device[name] for name in ("query_start", "context_lens", "block_tables")),
        arrays.scale,
        case.sliding_window,
        max_query_len=max_query_len or max(1, *case.query_lens),
        workspace=make_workspace(
            shapes, lambda *size: device.array(np.full(size[0], np.nan, size[1])), lambda *size: device.array(np.zeros(*size))
        ),
        **options,
    )
    guarded_out = np.asarray(device.host(guarded_out))
    check_output(case, arrays, guarded_out)
    return guarded_out[GUARD_ROWS:-GUARD_ROWS]
