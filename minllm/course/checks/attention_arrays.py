"""Batches for the attention ladders: a paged cache whose pages are shuffled, and all that is not to be read unwritten."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minllm.course.checks.mismatch import expect
from minllm.sim import unwritten

SPARE_PAGES = 3


@dataclass(frozen=True)
class AttentionCase:
    """Sequence b brings query_lens[b] new tokens and sees context_lens[b] keys, these included."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 4
    dtype: object = np.float32
    magnitude: float = 1.0  # of queries and keys


@dataclass
class AttentionArrays:
    """The arrays of a case, as kernels take them, and the keys and values of each sequence."""

    query: np.ndarray  # [T, heads, head_dim]
    key_cache: np.ndarray  # [pages, block_size, kv_heads, head_dim]
    value_cache: np.ndarray
    out: np.ndarray
    query_start: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    scale: float
    keys: list[np.ndarray]  # a sequence's [context, kv_heads, head_dim]
    values: list[np.ndarray]

    def arguments(self) -> tuple:
        """What an attention launcher takes."""
        caches = self.query, self.key_cache, self.value_cache, self.out
        return *caches, self.query_start, self.context_lens, self.block_tables, self.scale


def make(case: AttentionCase, seed: int = 0) -> AttentionArrays:
    """Random arrays; pages of nobody, and slots beyond a context, count as unwritten."""
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
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Attention in float64, a row and head at a time; or, for suspects, with another scale, `last` keys more, heads, or softmax.

    combine(scores [keys], values [keys, head_dim]) -> [head_dim].
    """
    scale = arrays.scale if scale is None else scale
    kv_head_of = kv_head_of or (lambda head: head // (case.heads // case.kv_heads))
    out, row = np.zeros(arrays.query.shape), 0
    for query_len, context, keys, values in zip(case.query_lens, case.context_lens, arrays.keys, arrays.values, strict=True):
        for i in range(query_len):
            stop = max(0, min(context, context - query_len + i + 1 + last))
            for head in range(case.heads if stop else 0):
                kv_head = kv_head_of(head)
                scores = keys[:stop, kv_head].astype(np.float64) @ arrays.query[row, head].astype(np.float64) * scale
                out[row, head] = (combine or softmax_times)(scores, values[:stop, kv_head].astype(np.float64))
            row += 1
    return out


def softmax_times(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """softmax(scores) values."""
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def without_rescale(tile: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """What online softmax over tiles gives when nothing is rescaled after a new maximum."""

    def combine(scores, values):
        maximum, total, out = -np.inf, 0.0, np.zeros(values.shape[1])
        for first in range(0, len(scores), tile):
            maximum = max(maximum, scores[first : first + tile].max())
            weights = np.exp(scores[first : first + tile] - maximum)
            total, out = total + weights.sum(), out + weights @ values[first : first + tile]
        return out / total

    return combine


def common_suspects(case: AttentionCase, arrays: AttentionArrays) -> list[tuple[str, np.ndarray]]:
    """Mistakes that any attention kernel can make."""
    found = [
        ("the scores were not multiplied by scale, 1 / sqrt(head_dim).", attend(case, arrays, scale=1.0)),
        ("the scores were multiplied by scale twice: the softmax does it.", attend(case, arrays, scale=arrays.scale**2)),
        ("each row saw one key too few: a token sees itself too.", attend(case, arrays, last=-1)),
        ("each row saw a key too many: a token sees no later one.", attend(case, arrays, last=1)),
        ("the weights were not divided by their sum.", attend(case, arrays, combine=undivided)),
    ]
    if 1 < case.kv_heads < case.heads:
        modulo = attend(case, arrays, kv_head_of=lambda head: head % case.kv_heads)
        found.append(("query head h read KV head h % kv_heads; neighbours share one: h // (heads // kv_heads).", modulo))
    return found


def undivided(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Softmax without its division."""
    return np.exp(scores - scores.max()) @ values


def judge(case: AttentionCase, arrays: AttentionArrays, suspects: list[tuple[str, np.ndarray]] | None = None) -> None:
    """Compare what a kernel wrote into `arrays.out`."""
    suspects = [*(suspects or []), *common_suspects(case, arrays)]
    expect("out", arrays.out, attend(case, arrays), ("token", "head", "dim"), suspects, tolerance=1e-4)
