"""Ladders for attention in its simplest form, scores, softmax and weighted values, and for online softmax."""

import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.attention_arrays import AttentionCase, attend, judge, make, without_rescale
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung

IN_PLACE = "the result was not written into scores: work in place."
TILE = 32  # keys per tile of FlashAttention-1


def run(attention, case, suspects=None, **options):
    """Launch on a case's arrays, and compare; suspects(case, arrays) adds to the common ones."""
    arrays = make(case)
    attention(*arrays.arguments(), **options, **({"sliding_window": case.window} if case.window else {}))
    judge(case, arrays, suspects and suspects(case, arrays))


def ladder(small, long, suspects=None, **options):
    """The rungs common to every attention kernel.

    small and long: cases with few keys, and with more than a tile.
    """

    def rung(**sizes):
        return lambda attention: [run(attention, AttentionCase(**case), suspects, **options) for case in cases_of(sizes)]

    def cases_of(sizes):
        return [{**(long if sizes.get("context_lens") == "long" else small), **{k: v for k, v in sizes.items() if v != "long"}}]

    return (
        Rung("one key", "softmax over one key is 1: the output is the value itself.", rung(query_lens=(1,), context_lens=(1,))),
        Rung("causal", "token i sees the keys up to its own, itself included.", rung(query_lens=(3,), context_lens=(3,))),
        Rung("a prompt after a context", "new tokens stand at the end of what is cached.", rung(query_lens=(2,), context_lens=(5,))),
        Rung("grouped heads", "query head h reads KV head h // (heads // kv_heads).", rung(heads=4, kv_heads=2),
             look="at which head each array is read: queries, scores and results at head, keys and values at kv_head."),
        Rung("non-consecutive pages", "key p lies in page block_table[p // block_size].",
             rung(block_size=2, context_lens=(7,), query_lens=(2,))),
        Rung("several sequences", "each sequence has its own queries, pages and length.", rung(query_lens=(2, 1), context_lens=(2, 6))),
        Rung("a sliding window", "a row sees its last keys only, those from `first` on.", rung(context_lens=(9,), window=3)),
        Rung("huge scores", "exp of a large score overflows: subtract the row's maximum first.", rung(magnitude=30.0)),
        Rung("more keys than a tile", "what was summed before a new maximum is scaled down to it.", rung(context_lens="long")),
        Rung("huge scores, then small ones", "a later tile does not lower the maximum.", rung(context_lens="long", magnitude=30.0)),
    )  # fmt: skip


def plain_rungs():
    """Rungs for the kernels of materialized attention."""

    def suspects(case, arrays):
        def slots_by_division(scores, values):
            at = np.arange(len(scores))
            found = at // case.block_size * case.block_size + at // case.block_size
            weights = np.exp(scores - scores.max())
            return weights @ values[np.minimum(found, len(values) - 1)] / weights.sum()

        def first_weight(scores, values):
            weights = np.exp(scores - scores.max())
            return weights[0] * values.sum(0) / weights.sum()

        divided = "the slot within a page is key % block_size; key // block_size is the page's number."
        return [
            (divided, attend(case, arrays, combine=slots_by_division)),
            ("every value got the first key's weight: it is scores[token, head, key].", attend(case, arrays, combine=first_weight)),
        ]

    advice = "the sum is not held in a float32 variable, or is computed for keys that the row does not see."
    place = "minllm.kernels.attention.ladder.materialized:attention"
    fast = speed.rung(place, speed_problems.attention("materialized", 1, 512, 512), advice)
    return *ladder(dict(query_lens=(2,), context_lens=(4,)), dict(query_lens=(1,), context_lens=(131,)), suspects), fast


def flash_rungs():
    """Rungs for FlashAttention-1, with one warp."""

    def suspects(case, arrays):
        forgot = "what was summed before a larger maximum came was not scaled by exp(old maximum - new maximum)."
        fresh = "the sum of the keys before this tile was left out: new_sum is kept plus all lanes' weights."
        found = [
            (forgot, attend(case, arrays, combine=without_rescale(TILE))),
            (fresh, attend(case, arrays, combine=without_kept_sum)),
        ]
        if max(case.context_lens) <= TILE:
            alone = "each lane added its own weight only: warp_sum adds up those of all lanes."
            found.append((alone, attend(case, arrays, combine=divided_by_a_lane)))
        return found

    sizes = dict(query_lens=(2,), context_lens=(4,)), dict(query_lens=(1,), context_lens=(TILE + 5,))
    place = "minllm.kernels.attention.ladder.flash_attention_1:attention"
    problem = speed_problems.attention("flash_attention_1", 1, 512, 512)
    advice = "the lanes' numbers are combined more often than once for the maximum and once for the sum."
    return *ladder(*sizes, suspects, warps=1), speed.rung(place, problem, advice)


def divided_by_a_lane(scores, values):
    """A `combine` for `attend`: one tile of keys; lane i holds element i of the output and divides it by the weight of key i only."""
    weights = np.exp(scores - scores.max())
    mine = np.zeros(max(len(weights), values.shape[1]))
    mine[: len(weights)] = weights
    return weights @ values * np.divide(1, mine, where=mine > 0, out=np.zeros_like(mine))[: values.shape[1]]


def without_kept_sum(scores, values):
    """A `combine` for `attend`: online softmax with a new sum that omits the old one; the row is kept divided by the sum."""
    maximum, total, out = -np.inf, 0.0, np.zeros(values.shape[1])
    for first in range(0, len(scores), TILE):
        new = max(maximum, scores[first : first + TILE].max())
        kept, weights = total * np.exp(maximum - new), np.exp(scores[first : first + TILE] - new)
        maximum, total = new, weights.sum()
        out = (out * kept + weights @ values[first : first + TILE]) / total
    return out


def softmax(softmax_in_place, scores):
    """Compare an in-place softmax with the result in float64."""
    scores = np.asarray(scores, np.float32)
    exact = scores.astype(np.float64)
    with np.errstate(all="ignore"):
        peak = exact.max(-1, keepdims=True)
        weights = np.exp(exact - np.where(np.isneginf(peak), 0, peak))
        expected = weights / np.where(weights.sum(-1, keepdims=True) == 0, 1, weights.sum(-1, keepdims=True))
        powers_of_2 = np.exp2(exact - np.where(np.isneginf(peak), 0, peak))
        by_column = np.exp(exact - exact.max(0))
        suspects = [
            ("the sum went over the whole array; every row has its own.", weights / weights.sum()),
            ("the weights were not divided by the sum of their own row: axis=-1.", weights),
            ("these are powers of 2; take exp, powers of e.", powers_of_2 / powers_of_2.sum(-1, keepdims=True)),
            ("the maximum of each column was subtracted; every row has its own: axis=-1.", by_column / by_column.sum(-1, keepdims=True)),
        ]
        if scores.max() > 88:  # too large for exp in float32
            naive = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            suspects.append(("exp of a large score is infinite, and inf / inf is not a number: subtract the row's maximum first.", naive))
    mine = scores.copy()
    result = softmax_in_place(mine)
    expect("softmax(scores)", result, expected, ("row", "key"), suspects)
    expect("scores, afterwards", mine, expected, ("row", "key"), [(IN_PLACE, exact), (IN_PLACE, weights)])


def merged(merge_reference, first, second):
    """Merge two states and compare with the formula in float64."""
    states = [tuple(np.asarray(part, np.float64) for part in state) for state in (first, second)]
    (m1, l1, o1), (m2, l2, o2) = states
    m = np.maximum(m1, m2)
    with np.errstate(all="ignore"):
        shift = np.where(np.isneginf(m), 0, m)
        w1, w2 = np.exp(m1 - shift), np.exp(m2 - shift)
    expected = m, l1 * w1 + l2 * w2, o1 * w1[..., None] + o2 * w2[..., None]
    unscaled = m, l1 + l2, o1 + o2
    unshifted = m, l1 * np.exp(m1) + l2 * np.exp(m2), o1 * np.exp(m1)[..., None] + o2 * np.exp(m2)[..., None]
    exchanged = m, l1 * w2 + l2 * w1, o1 * w2[..., None] + o2 * w1[..., None]
    one = "that is one state's maximum; the union's is the larger of the two, element by element: np.maximum."
    p1, p2 = np.exp2(m1 - shift), np.exp2(m2 - shift)
    base_2 = m, l1 * p1 + l2 * p2, o1 * p1[..., None] + o2 * p2[..., None]
    half = m, l1 * p1 + l2 * w2, o1 * p1[..., None] + o2 * w2[..., None]
    powers = "powers of 2; here the maxima are to base e: np.exp."
    raised = "the maxima themselves were raised; each state is scaled by exp(its own maximum - m)."
    crossed = "the weights are exchanged: each state is scaled by exp(its own maximum - m)."
    added = "the two were added as they are; each is relative to its own maximum, so scale by exp(m1 - m) and exp(m2 - m)."
    result = merge_reference(*states)
    if not isinstance(result, tuple) or len(result) != 3:
        raise Mismatch(f"expected a state, (m, l, o), got {type(result).__name__}\nLikely cause: `return m, l, o` is missing.")
    for i, (name, got) in enumerate(zip(("m", "l", "o"), result)):
        own = [(one, m1), (one, m2), ("the smaller of the two maxima was taken.", np.minimum(m1, m2))] if name == "m" else []
        suspects = [*own, (added, unscaled[i]), (raised, unshifted[i]), (powers, base_2[i]), (powers, half[i]), (crossed, exchanged[i])]
        expect(name, got, expected[i], ("row", "dim"), suspects if name != "m" else own)


def some_states(maxima, seed=0):
    """One state per maximum: m, l [rows], o [rows, 3]."""
    random = np.random.default_rng(seed)
    return np.float64(maxima), random.uniform(1, 2, len(maxima)), random.standard_normal((len(maxima), 3))


EXERCISES = (
    Exercise(
        name="attention.softmax",
        lesson=3,
        title="softmax of a row of scores, in NumPy and in place",
        module="minllm.kernels.attention.reference",
        entry="softmax_in_place",
        task="Turn each row of scores (the last axis) into weights, in place: subtract the row's maximum (or 0 where that is "
        "-inf), take exp, "
        "divide by the sum (or by 1 where that is 0), and return scores.",
        hints=("keepdims=True keeps the axis, so that a row's number can be subtracted from the row.", "np.exp(scores, out=scores)"),
        rungs=(
            Rung("two equal scores", "half the weight each.", lambda f: softmax(f, [[0, 0]])),
            Rung("several rows", "every row sums to 1.", lambda f: softmax(f, [[0, 1, 2], [3, 1, 4]])),
            Rung("huge scores", "exp(1000) overflows: subtract the maximum first.", lambda f: softmax(f, [[1000, 999, -1000]])),
            Rung("hidden keys", "a score of -inf gets weight 0.", lambda f: softmax(f, [[1, -np.inf], [0, 2]])),
            Rung("a row that sees nothing", "no keys, no weights: zeros, not NaN.", lambda f: softmax(f, [[-np.inf, -np.inf], [0, 1]])),
        ),
    ),
    Exercise(
        name="attention.scores",
        lesson=3,
        title="S = Q K^T, one thread per score",
        module="minllm.kernels.attention.ladder.materialized",
        entry="attention",
        stage="attention",
        task="If this thread's key is one that the row sees (first <= key < stop): store in scores[token, head, key] the dot product of "
        "query[token, head] and key_transposed[sequence, kv_head, :, key], in float32.",
        hints=("query.shape[2] is head_dim.", "The scale is applied later, by the softmax kernel."),
        rungs=plain_rungs(),
    ),
    Exercise(
        name="attention.weighted_values",
        lesson=3,
        title="out = P V, one thread per element of the head",
        module="minllm.kernels.attention.ladder.materialized",
        entry="attention",
        stage="attention",
        task="Add up, over the keys from first to stop, the weight scores[token, head, key] times the key's value at kv_head and dim. "
        "The values are stored in pages of block_size keys: this one is row key % block_size of the page "
        "block_tables[sequence, key // block_size]. Store the sum in out[token, head, dim].",
        hints=("uint32(key) // uint32(block_size) divides without a sign, which is cheaper.", "The weights already sum to 1."),
        rungs=plain_rungs(),
    ),
    Exercise(
        name="attention.merge_states",
        lesson=7,
        title="the algebra of online softmax: merge two states, in NumPy",
        module="minllm.kernels.attention.common.online_softmax",
        entry="merge_reference",
        task="Return the state (m, l, o) of both sets of keys together: m = max(m1, m2), and l and o the sums of the two, each scaled by "
        "exp(its own maximum - m). Where both maxima are -inf, subtract 0 instead: -inf - -inf would be NaN.",
        hints=("first[0], first[1], first[2] are m1, l1 and o1.", "o has one axis more than m: weight[..., None] multiplies whole rows."),
        rungs=(
            Rung("equal maxima", "nothing to scale: sums add up.", lambda f: merged(f, some_states([1, 2]), some_states([1, 2], 1))),
            Rung("other maxima", "each state is relative to its own maximum.",
                 lambda f: merged(f, some_states([0, 3]), some_states([2, 1], 1))),
            Rung("huge maxima", "only differences of maxima are raised.", lambda f: merged(f, some_states([1000]), some_states([998], 1))),
            Rung("a state of no keys", "(-inf, 0, 0) changes nothing.",
                 lambda f: merged(f, some_states([1]), ([-np.inf], [0], np.zeros((1, 3))))),
            Rung("two states of no keys", "(-inf, 0, 0) again, and no NaN.",
                 lambda f: merged(f, *[([-np.inf], [0], np.zeros((1, 3)))] * 2)),
        ),
    ),
    Exercise(
        name="attention.flash_attention_1",
        lesson=7,
        title="FlashAttention-1: fold a tile of keys into a row's state",
        module="minllm.kernels.attention.ladder.flash_attention_1",
        entry="attention",
        stage="attention",
        task="From the row's old maximum and sum (row_max, row_sum) and this lane's score make: new_max over the old one and all "
        "lanes, shift = "
        "finite_or_zero(new_max), weight = 2^(score - shift), kept = the old sum scaled to the new maximum, new_sum = kept + all "
        "lanes' weights, and inverse = 1 / new_sum, or 0 where that is 0. row_out is kept divided by the sum.",
        hints=("warp_max and warp_sum combine the 32 lanes' numbers, and give every lane the result.", "ex2(x) is 2^x; scores are "
                                                                                                       "to base 2."),
        rungs=flash_rungs(),
    ),
)  # fmt: skip
