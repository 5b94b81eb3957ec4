"""KV heads are given to ranks; with more ranks than KV heads the answers are wrong."""

import numpy as np

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch

HEADS, KV_HEADS, TOKENS, HEAD_DIM = 8, 2, 5, 4


def kv_heads_of_rank(rank, ranks, kv_heads):
    """The KV heads that a rank stores: its share, or one if there are more ranks than KV heads."""
    count = max(1, kv_heads // ranks)
    first = rank * count % kv_heads
    return range(first, first + count)


def mended_heads(rank, ranks, kv_heads):
    """The same, with the KV head that the rank's query heads belong to."""
    count = max(1, kv_heads // ranks)
    first = rank * kv_heads // ranks
    return range(first, first + count)


def attention(query, key, value):
    """The heads of a decode step: query [heads, head_dim]; key, value [tokens, kv_heads, head_dim]; head h reads KV head h // group."""
    group = len(query) // key.shape[1]
    out = np.empty_like(query)
    for head, row in enumerate(query):
        weights = np.exp(key[:, head // group] @ row / np.sqrt(HEAD_DIM))
        out[head] = weights @ value[:, head // group] / weights.sum()
    return out


def examine(kv_heads_of):
    """8 heads and 2 KV heads on one, two and four ranks."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((HEADS, HEAD_DIM)), *rng.standard_normal((2, TOKENS, KV_HEADS, HEAD_DIM))
    whole, report, is_wrong = attention(query, key, value), [], False
    for ranks in (1, 2, 4):
        parts, share = [], HEADS // ranks
        for rank in range(ranks):
            own = list(kv_heads_of(rank, ranks, KV_HEADS))
            parts.append(attention(query[rank * share : (rank + 1) * share], key[:, own], value[:, own]))
        wrong = [head for head in range(HEADS) if not np.allclose(np.concatenate(parts)[head], whole[head])]
        is_wrong |= bool(wrong)
        report.append(f"{ranks} ranks: {f'heads {wrong} differ from those of one GPU' if wrong else 'right'}")
    if is_wrong:
        raise Mismatch("\n".join(report))


CASE = Case(
    name="four_strangers",
    lesson=20,
    title="Two get along, four do not",
    story="A small model has 8 query heads and 2 KV heads. On one GPU and on two its text is right. On four GPUs it writes grammatical "
    "sentences that have nothing to do with the question. No shape is wrong, no memory is touched that should not be, and all ranks agree "
    "on every token.",
    hint="On four ranks each has two query heads and stores one KV head. Write down, for each rank, which KV head its query heads belong "
    "to, and which one it stores.",
    broken=kv_heads_of_rank,
    mended=mended_heads,
    examine=examine,
    guilty="first = rank * count % kv_heads",
    solution="Query head h belongs to KV head h // 4. Rank 1 has the query heads 2 and 3, which belong to KV head 0; rank 2 has 4 and 5, "
    "of KV head 1. With the remainder the ranks store the KV heads 0, 1, 0, 1 instead of 0, 0, 1, 1: on ranks 1 and 2 the head that is "
    "needed is lost, and another one answers. Neighbouring ranks share a KV head, so rank r stores number r * kv_heads // ranks. With one "
    "and two ranks both formulas say the same. Compare each number of ranks with one GPU, and take a model whose KV heads are fewer "
    "than the ranks.",
)
