"""Batches with a residual window: codes in scattered blocks, recent tokens in others, poison wherever nothing may be read.

`meant_keys` and `meant_values` say what each query must see, key by key, from the definition of the window alone.
"""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.quantization.cache import QuantizedCache, allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

FLOAT_SCALES = (0.02, 0.03)  # KV heads take them in turn


@dataclass(frozen=True)
class WindowCase:
    """A sequence has `context_lens` keys, the last `query_lens` of them new; 0 context is padding with one row."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    name: str = "kivi_int4"
    residual_window: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 32
    sliding_window: int = 0
    dtype: np.dtype = np.dtype(np.float32)

    def __str__(self):
        sizes = "-".join(f"{q}of{c}" for q, c in zip(self.query_lens, self.context_lens, strict=True))
        return f"{self.name}-{sizes}-r{self.residual_window}-{self.heads}x{self.kv_heads}x{self.head_dim}-b{self.block_size}-{self.dtype}"


@dataclass(frozen=True)
class WindowArrays:
    """The arguments of `attention_with_window_reference` in their order, but for scale and windows; then keys and values, exact and coded,
    float32 [context, kv_heads, head_dim] of each sequence."""

    query: np.ndarray
    key_cache: QuantizedCache
    value_cache: QuantizedCache
    recent_key: np.ndarray
    recent_value: np.ndarray
    query_start: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    recent_lens: np.ndarray
    recent_tables: np.ndarray
    exact: list[tuple[np.ndarray, np.ndarray]]
    coded: list[tuple[np.ndarray, np.ndarray]]

    @property
    def arguments(self):
        """The arrays of the call."""
        return tuple(getattr(self, name) for name in list(self.__dataclass_fields__)[:10])


def make_window_arrays(case, seed=0):
    """Random arrays of the case; what no query may read is NaN, or codes and scales of NaN."""
    random = np.random.default_rng(seed)
    first = [context - query for query, context in zip(case.query_lens, case.context_lens, strict=True)]
    bases = [int(window_start(start, case.residual_window)) for start in first]
    recent_lens = [max(0, context - base) for context, base in zip(case.context_lens, bases, strict=True)]
    tables, blocks = scattered(case.context_lens, case.block_size, random)
    recent_tables, recent_blocks = scattered(recent_lens, TOKEN_GROUP, random)
    form = kv_format(case.name, case.head_dim)
    caches = [
        allocate(form, blocks, case.block_size, case.kv_heads, np.zeros, np.array, by_channel)
        for by_channel in (form.keys_by_channel, False)
    ]
    for cache in caches:
        cache.codes[:] = 0x7F if form.is_float else 0xFF
        cache.scales[:] = np.resize(FLOAT_SCALES, case.kv_heads) if form.is_float else np.nan
    recents = [np.full((recent_blocks, TOKEN_GROUP, case.kv_heads, case.head_dim), np.nan, case.dtype) for _ in range(2)]
    exact, coded = [], []
    for b, context in enumerate(case.context_lens):
        numbers = random.standard_normal((2, context, case.kv_heads, case.head_dim)).astype(case.dtype)
        numbers[0] *= random.choice([0.3, 3], case.head_dim).astype(case.dtype)  # keys have large channels
        written, meant = int(window_start(context - 1, case.residual_window)) if context else 0, []
        slots = slots_of(tables[b], np.arange(written), case.block_size)
        for x, cache, recent in zip(numbers, caches, recents, strict=True):
            put(cache, slots, x[:written])
            at = slots_of(recent_tables[b], np.arange(context - bases[b]), TOKEN_GROUP) if context else np.zeros(0, int)
            recent.reshape(-1, *recent.shape[2:])[at] = x[bases[b] :] if context else x
            meant.append(read(cache, slots))
        exact.append(tuple(numbers.astype(np.float32)))
        coded.append(tuple(meant))
    rows = [max(1, query) if not context else query for query, context in zip(case.query_lens, case.context_lens, strict=True)]
    query = random.standard_normal((sum(rows), case.heads, case.head_dim)).astype(case.dtype)
    starts = np.cumsum([0, *rows]).astype(np.int32)
    lens = np.array(case.context_lens, np.int32)
    return WindowArrays(query, *caches, *recents, starts, lens, tables, np.array(recent_lens, np.int32), recent_tables, exact, coded)


def scattered(lengths, block_size, random):
    """(tables int32 [B, max_blocks], number of blocks): blocks in no order, some of them nobody's."""
    needed = [-(-length // block_size) for length in lengths]
    order = random.permutation(sum(needed) + 2)
    tables = np.zeros((len(lengths), max(1, *needed)), np.int32)
    for b, count in enumerate(needed):
        tables[b, :count] = order[sum(needed[:b]) : sum(needed[:b]) + count]
    return tables, len(order)


def slots_of(table, positions, block_size):
    """block * block_size + offset of positions of a sequence."""
    return table[positions // block_size] * block_size + positions % block_size


def put(cache, slots, x):
    """Write x [tokens, kv_heads, head_dim], whole groups, at `slots`."""
    if cache.by_channel:
        cache.put_groups(slots[::TOKEN_GROUP], x.reshape(-1, TOKEN_GROUP, *x.shape[1:]))
    else:
        cache.put(slots, x)


def read(cache, slots):
    """What codes at `slots` mean: float32 [tokens, kv_heads, head_dim]."""
    num_blocks, block_size, *row = cache.shape
    if not len(slots):
        return np.zeros((0, *row), np.float32)
    return cache.read(lambda array: array.reshape(num_blocks * block_size, *array.shape[2:])[slots])


def expected_output(case, arrays, scale):
    """float64 [T, heads, head_dim], a query and a head at a time, from the definition."""
    out = np.zeros(arrays.query.shape, np.float64)
    for b, context in enumerate(case.context_lens):
        rows = range(arrays.query_start[b], arrays.query_start[b + 1]) if context else ()
        for row in rows:
            position = context - arrays.query_start[b + 1] + row
            first = max(0, position + 1 - case.sliding_window) if case.sliding_window else 0
            border = (max(0, position + 1 - case.residual_window) // 32) * 32
            keys, values = (
                np.concatenate([coded[first:border], exact[max(first, border) : position + 1]]).astype(np.float64)
                for coded, exact in zip(arrays.coded[b], arrays.exact[b], strict=True)
            )
            for head in range(case.heads):
                kv_head = head // (case.heads // case.kv_heads)
                scores = scale * keys[:, kv_head] @ arrays.query[row, head].astype(np.float64)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[:, kv_head]
    return out
