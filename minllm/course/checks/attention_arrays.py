"""Batches for the attention ladders: a paged cache with shuffled pages, and poison in all memory that must not be read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minllm.course.checks.mismatch import expect
from minllm.sim import unwritten

SPARE_PAGES = 3
OTHER_BASE = "the exponentials are to another base than the scores: ex2(x) is 2^x, exp(x) is e^x."


@dataclass(frozen=True)
class AttentionCase:
    """Sequence b has query_lens[b] new tokens and sees context_lens[b] keys, including the new ones."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    dtype: object = np.float32
    magnitude: float = 1.0  # magnitude of queries and keys
    window: int = 0  # largest number of keys that a row sees; 0 for all


@dataclass
class AttentionArrays:
    """The arguments of attention kernels for a case, and the keys and values of each sequence."""

    query: np.ndarray  # [T, heads, head_dim]
    key_cache: np.ndarray  # [pages, block_size, kv_heads, head_dim]
    value_cache: np.ndarray
    out: np.ndarray
    query_start: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    scale: float
    keys: list[np.ndarray]  # per sequence [context, kv_heads, head_dim]
    values: list[np.ndarray]

    def arguments(self) -> tuple:
        """The arguments of an attention launcher."""
        caches = self.query, self.key_cache, self.value_cache, self.out
        return *caches, self.query_start, self.context_lens, self.block_tables, self.scale


def make(case: AttentionCase, seed: int = 0) -> AttentionArrays:
    """Random arrays for a case; free pages, and slots beyond a context, are poisoned as unwritten."""
    random, dtype = np.random.default_rng(seed), np.dtype(case.dtype)
    pages = [-(-context // case.block_size) for context in case.context_lens]
    order = random.permutation(sum(pages) + SPARE_PAGES).astype(np.int32)
    shape = (len(order), case.block_size, case.kv_heads, case.head_dim)
    key_cache, value_cache = unwritten(shape, dtype), unwritten(shape, dtype)
    block_tables = np.zeros((len(pages), max(1, *pages)), np.int32)
    keys, values, taken = [], [], 0
    for sequence, context in enumerate(case.context_lens):
        table = order[taken : taken + pages[sequence]]
        taken += pages[sequence]
        block_tables[sequence, : len(table)] = table
        position = np.arange(context)
        for lists, cache, size in ((keys, key_cache, case.magnitude), (values, value_cache, 1.0)):
            lists.append((size * random.standard_normal((context, case.kv_heads, case.head_dim))).astype(dtype))
            cache[table[position // case.block_size], position % case.block_size] = lists[-1]
    query = (case.magnitude * random.standard_normal((sum(case.query_lens), case.heads, case.head_dim))).astype(dtype)
    return AttentionArrays(
        query, key_cache, value_cache, unwritten(query.shape, dtype), np.cumsum([0, *case.query_lens]).astype(np.int32),
        np.array(case.context_lens, np.int32), block_tables, case.head_dim**-0.5, keys, values,
    )  # fmt: skip


def attend(
    case: AttentionCase,
    arrays: AttentionArrays,
    scale: float | None = None,
    last: int = 0,
    kv_head_of: Callable[[int], int] | None = None,
    value_head_of: Callable[[int], int] | None = None,
    query_head_of: Callable[[int], int] | None = None,
    dims: slice = slice(None),
    window: int | None = None,
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Attention in float64, [T, heads, head_dim]; the optional arguments model mistakes, for suspects.

    last: number of additional keys. kv_head_of, value_head_of, query_head_of: functions from the head to those that are read. dims: the
    components of the head that scores use. combine(scores [keys], values [keys, head_dim]) -> [head_dim]: replaces the softmax.
    """
    scale = arrays.scale if scale is None else scale
    kv_head_of = kv_head_of or (lambda head: head // (case.heads // case.kv_heads))
    value_head_of, query_head_of = value_head_of or kv_head_of, query_head_of or (lambda head: head)
    window = case.window if window is None else window
    out, row = np.zeros(arrays.query.shape), 0
    for query_len, context, keys, values in zip(case.query_lens, case.context_lens, arrays.keys, arrays.values, strict=True):
        for i in range(query_len):
            stop = max(0, min(context, context - query_len + i + 1 + last))
            first = max(0, context - query_len + i + 1 - window) if window else 0
            for head in range(case.heads if stop > first else 0):
                seen, passed = keys[first:stop, kv_head_of(head), dims], values[first:stop, value_head_of(head)].astype(np.float64)
                scores = seen.astype(np.float64) @ arrays.query[row, query_head_of(head), dims].astype(np.float64)
                out[row, head] = (combine or softmax_times)(scores * scale, passed)
            row += 1
    return out


def softmax_times(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """softmax(scores) values."""
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def without_rescale(tile: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A `combine` for `attend`: online softmax over tiles without rescaling after a new maximum."""

    def combine(scores, values):
        maximum, total, out = -np.inf, 0.0, np.zeros(values.shape[1])
        for first in range(0, len(scores), tile):
            maximum = max(maximum, scores[first : first + tile].max())
            weights = np.exp(scores[first : first + tile] - maximum)
            total, out = total + weights.sum(), out + weights @ values[first : first + tile]
        return out / total

    return combine


def common_suspects(case: AttentionCase, arrays: AttentionArrays) -> list[tuple[str, np.ndarray]]:
    """(mistake, its result) for mistakes that are possible in any attention kernel."""
    found = [
        ("the scores were not multiplied by scale, 1 / sqrt(head_dim).", attend(case, arrays, scale=1.0)),
        ("the scores were multiplied by scale twice: the softmax does it.", attend(case, arrays, scale=arrays.scale**2)),
        ("each row saw one key too few: a token sees itself too.", attend(case, arrays, last=-1)),
        ("each row saw a key too many: a token sees no later one.", attend(case, arrays, last=1)),
        ("the weights were not divided by their sum.", attend(case, arrays, combine=undivided)),
        (
            "the last element of each head is missing from the scores: dim runs from 0 to head_dim - 1.",
            attend(case, arrays, dims=slice(case.head_dim - 1)),
        ),
        (
            "the first element of each head is missing from the scores: dim runs from 0 to head_dim - 1.",
            attend(case, arrays, dims=slice(1, None)),
        ),
        ("the score is the last product alone: add the products up with +=.", attend(case, arrays, dims=slice(case.head_dim - 1, None))),
        ("every query head read KV head 0.", attend(case, arrays, kv_head_of=lambda head: 0)),
        ("the values were averaged: every key got the same weight.", attend(case, arrays, combine=lambda scores, values: values.mean(0))),
        *[(OTHER_BASE, attend(case, arrays, scale=arrays.scale * factor)) for factor in (np.log(2), 1 / np.log(2))],
    ]
    if 1 < case.kv_heads < case.heads:
        right, modulo = lambda head: head // (case.heads // case.kv_heads), lambda head: head % case.kv_heads  # noqa: E731
        shared = "neighbours share one: h // (heads // kv_heads), which is kv_head here."
        found += [  # fmt: skip
            (f"query head h read KV head h % kv_heads; {shared}", attend(case, arrays, kv_head_of=modulo)),
            (f"query head h read the keys of KV head h % kv_heads; {shared}", attend(case, arrays, kv_head_of=modulo, value_head_of=right)),
            ("the query of head kv_head was taken; this score is of query head `head`.", attend(case, arrays, query_head_of=right)),
            (f"query head h read the values of KV head h % kv_heads; {shared}", attend(case, arrays, value_head_of=modulo)),
        ]
    if case.window:
        found.append(("keys before the window were read, too: they begin at first.", attend(case, arrays, window=0)))
    return found


def undivided(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A `combine` for `attend`: softmax without the division."""
    return np.exp(scores - scores.max()) @ values


def judge(case: AttentionCase, arrays: AttentionArrays, suspects: list[tuple[str, np.ndarray]] | None = None) -> None:
    """Raise Mismatch unless `arrays.out` is right; `suspects` are added to the common ones."""
    suspects = [*(suspects or []), *common_suspects(case, arrays)]
    expect("out", arrays.out, attend(case, arrays), ("token", "head", "dim"), suspects, tolerance=1e-4)
