"""Ladders for Flash-Decoding: a context split over blocks, and the merge of the splits' states."""

import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.attention_arrays import AttentionCase, attend, judge, make
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.arguments import ceil_div
from minllm.sim import unwritten

SHARE = 8  # keys per split in the cases below


def states(splits, head_dim=4, maxima=None, seed=0):
    """(m, l, o) of the splits of one sequence and head, as written by the first kernel: m, l [1, 1, splits], o [..., head_dim]."""
    random = np.random.default_rng(seed)
    m = np.float32(random.standard_normal(splits) if maxima is None else maxima)
    l, o = np.float32(random.uniform(1, 2, splits)), random.standard_normal((splits, head_dim)).astype(np.float32)  # noqa: E741
    return m[None, None], l[None, None], o[None, None]


def merge(make_merge_kernel, m, l, o, context, step=SHARE):  # noqa: E741
    """Run the reader's merge and compare: M = max m, out = sum 2^(m - M) o / sum 2^(m - M) l."""
    merge_kernel, threads = make_merge_kernel(o.shape[3])
    out = unwritten((1, 1, o.shape[3]), np.float32)
    merge_kernel.simulate[(1, 1), threads](m, l, o, out, np.int32([0, 1]), np.int32([context]), 0, step)
    share = ceil_div(ceil_div(context, m.shape[2]), step) * step  # keys per split
    used = ceil_div(context, share)
    m, l, o = m[0, 0, :used].astype(np.float64), l[0, 0, :used].astype(np.float64), o[0, 0, :used].astype(np.float64)  # noqa: E741
    weight = np.exp2(m - m.max())
    suspects = [
        ("the splits' outputs were added without their weights 2^(m - M): each is relative to its own maximum.", o.sum(0) / l.sum()),
        ("the outputs were weighted, the sums were not.", weight @ o / l.sum()),
        ("the outputs were averaged; each split counts by its weight and its sum.", (o / l[:, None]).mean(0)),
        ("the exponentials are to base e; the maxima are to base 2.", np.exp(m - m.max()) @ o / (np.exp(m - m.max()) @ l)),
        ("nothing was divided by the sum of the weighted l.", weight @ o),
    ]  # fmt: skip
    again = weight * (np.minimum(np.arange(used), threads // 32 - 1) + 1)
    suspects += [
        ("the outputs were not weighted, the sums were: acc[i] takes weight * the split's output.", o.sum(0) / (weight @ l)),
        ("splits were added by several warps: warp w goes on by the number of warps.", again @ o / (again @ l)),
        ("splits were added by several warps: warp w goes on by the number of warps.", again @ o / (weight @ l)),
    ]
    own = np.where(np.arange(used) % (threads // 32) == 0, weight, 0)
    suspects.append(("all warps took the same splits, 0, warps, 2 warps, ...: warp w begins at split w.", own @ o / (own @ l)))
    expect("out", out[0, 0], weight @ o / (weight @ l), ("dim",), suspects)


def one_split(make_merge_kernel):
    """A single split: o / l."""
    merge(make_merge_kernel, np.float32([[[3]]]), np.float32([[[2]]]), np.float32([[[[4, 6, 8, 10]]]]), context=5)


def two_splits(make_merge_kernel):
    """Two states with the same maximum."""
    merge(make_merge_kernel, *states(2, maxima=[1, 1]), context=2 * SHARE)


def other_maxima(make_merge_kernel):
    """Different maxima."""
    merge(make_merge_kernel, *states(3), context=3 * SHARE)


def huge(make_merge_kernel):
    """2^m alone overflows float32 beyond 128."""
    merge(make_merge_kernel, *states(3, maxima=[900, 1000, 998]), context=3 * SHARE)


def many_splits(make_merge_kernel):
    """More splits than warps, and than lanes; head_dim beyond a warp."""
    for splits, head_dim in ((5, 8), (33, 4), (3, 40)):
        merge(make_merge_kernel, *states(splits, head_dim), context=splits * SHARE)


def empty_splits(make_merge_kernel):
    """Splits without keys have m = -inf, l = 0, and an unwritten o."""
    m, l, written = states(4)  # noqa: E741
    m[..., 2:], l[..., 2:] = -np.inf, 0
    o = unwritten(written.shape, np.float32)
    o[..., :2, :] = written[..., :2, :]
    merge(make_merge_kernel, m, l, o, context=2 * SHARE)


def budget(make_merge_kernel):
    """Each split's output is read once."""
    m, l, o = states(8, 32)  # noqa: E741
    kernel, threads = make_merge_kernel(32)
    out = unwritten((1, 1, 32), np.float32)
    arguments = (m, l, o, out, np.int32([0, 1]), np.int32([8 * SHARE]), 0, SHARE)
    advice = "each warp takes every fourth split, so that the four together read an output once."
    expect_bytes(lambda: kernel.simulate[(1, 1), threads](*arguments), {"split_out": o.nbytes}, {"out": out.nbytes}, advice)


def decode(attention, case, splits=2):
    """Run a decode step with one warp per block and two keys per subgroup at a time, and compare."""
    arrays = make(case)
    attention(*arrays.arguments(), splits=splits, warps=1, keys_each=2)
    mistakes = (
        ("neither sums[head] nor acc was scaled by 2^(old maximum - new maximum).", dict(sums=False, outputs=False)),
        ("sums[head] was not scaled by 2^(old maximum - new maximum); acc was.", dict(sums=False)),
        ("acc was not scaled by 2^(old maximum - new maximum); sums[head] was.", dict(outputs=False)),
        ("the weights are not relative to maxima[head], by which the states are merged later: weight = 2^(score - shift).",
         dict(relative=False)),
    )  # fmt: skip
    suspects = [] if splits > 1 else [(said, attend(case, arrays, combine=by_subgroups(**how))) for said, how in mistakes]
    judge(case, arrays, suspects)


def by_subgroups(sums=True, outputs=True, relative=True):
    """A `combine` for `attend`: softmax as the kernel computes it, for the sizes of `decode`; False arguments leave a step out.

    With 8 float32 per head, a key takes 2 lanes, so that a warp has 16 subgroups: each takes every sixteenth key, two per step, and holds
    a state. sums, outputs: whether they are rescaled to each new maximum. relative: whether weights are 2^(score - maximum).
    """

    def combine(scores, values):
        scores = scores * np.log2(np.e)
        states = []
        for subgroup in range(min(16, len(scores))):
            maximum, total, out = -np.inf, 0.0, np.zeros(values.shape[1])
            for first in range(subgroup, len(scores), 32):
                keys = np.arange(first, min(first + 32, len(scores)), 16)
                new = max(maximum, scores[keys].max())
                correction = 2.0 ** (maximum - new) if relative else 1.0
                weights = np.exp2(scores[keys] - (new if relative else 0))
                total = total * (correction if sums else 1) + weights.sum()
                out = out * (correction if outputs else 1) + weights @ values[keys]
                maximum = new
            states.append((maximum, total, out))
        scale = np.exp2(np.array([m for m, _, _ in states]) - max(m for m, _, _ in states))
        return scale @ np.array([o for _, _, o in states]) / (scale @ np.array([total for _, total, _ in states]))

    return combine


def share(share_of_split, splits, context, window=0, step=1):
    """Check which keys each split takes."""
    first = max(0, context - window) if window else 0
    size = ceil_div(ceil_div(context - first, splits), step) * step
    short = max((context - first) // splits // step * step, 0)
    starts = np.arange(splits)
    right = np.stack([first + starts * size, np.minimum(first + (starts + 1) * size, context)], 1)
    got = [share_of_split.py_func(split, splits, context, window, step) for split in range(splits)]
    if any(keys is None for keys in got):
        raise Mismatch("share_of_split returned None.\nLikely cause: the function ends without `return`.")
    suspects = [
        ("the last keys are in no split: round the share up.", np.stack([first + starts * short, first + (starts + 1) * short], 1)),
        ("the last keys are in no split: round the share up.",
         np.stack([first + starts * short, np.minimum(first + (starts + 1) * short, context)], 1)),
        ("the keys begin at first_visible, not at 0.", np.stack([starts * size, np.minimum((starts + 1) * size, context)], 1)),
        ("no split ends beyond the context.", np.stack([right[:, 0], right[:, 0] + size], 1)),
    ]  # fmt: skip
    expect("(start, stop)", np.int64(got), right, ("split", "start or stop"), suspects)


EXERCISES = (
    Exercise(
        name="attention.share_of_split",
        lesson=9,
        title="which keys a split takes",
        module="minllm.kernels.attention.split_kv.merge",
        entry="share_of_split",
        task="The visible keys are first_visible to context_len. Give each of the splits the same number of them, rounded up, and up again "
        "to a multiple of step. Return the first key of this split, and one past its last.",
        hints=(
            "(a + b - 1) // b is a / b, rounded up.",
            "The last split that holds keys may be shorter: it ends at context_len. Splits behind it are empty.",
        ),
        rungs=(
            Rung("two halves", "8 keys, 2 splits: 0 to 4 and 4 to 8.", lambda f: share(f, 2, 8)),
            Rung("a remainder", "every key is in a split, also if the division leaves a rest.", lambda f: share(f, 3, 10)),
            Rung("whole steps", "a block loads `step` keys at a time.", lambda f: share(f, 3, 100, step=16)),
            Rung("a sliding window", "keys before the window are seen by nobody.", lambda f: share(f, 2, 20, window=8)),
        ),
    ),
    Exercise(
        name="attention.split_kv",
        lesson=9,
        title="Flash-Decoding: scale a head's state to a new maximum",
        module="minllm.kernels.attention.split_kv.split_kv",
        entry="attention",
        stage="attention",
        most_rows=1,
        task="maximum is the largest of maxima[head] and the new keys' scores. Scale sums[head] and the head's numbers_each elements of "
        "acc by 2^(old maximum - new), and store the new maximum. shift, which the loop below also uses, is the new maximum, or 0 if the "
        "head has seen no key.",
        hints=(
            "shift = finite_or_zero(maximum), so that a head that has seen no key yet does not compute -inf - -inf.",
            "ex2(x) is 2^x. Read maxima[head] before you replace it.",
        ),
        rungs=(
            Rung("one key", "softmax over one key is 1: the output is the value.", lambda f: decode(f, AttentionCase((1,), (1,)), 1)),
            Rung("a few keys", "weights are divided by their sum at the end.", lambda f: decode(f, AttentionCase((1,), (3,)), 1)),
            Rung(
                "huge scores",
                "2^x of a large score overflows: subtract the maximum.",
                lambda f: decode(f, AttentionCase((1,), (9,), magnitude=30.0), 1),
            ),
            Rung(
                "more keys than a step",
                "what was summed before a new maximum is scaled to it.",
                lambda f: decode(f, AttentionCase((1,), (101,)), 1),
            ),
            Rung(
                "grouped heads",
                "a thread holds a state for each head of the group.",
                lambda f: decode(f, AttentionCase((1,), (70,), heads=6, kv_heads=2)),
                look="the head in every index: maxima[head], sums[head], acc[head * numbers_each + i], scores[key * heads_here + head].",
            ),
            Rung(
                "non-consecutive pages",
                "key p lies in page block_table[p // block_size].",
                lambda f: decode(f, AttentionCase((1,), (19,), block_size=2)),
            ),
            Rung(
                "several sequences and splits",
                "splits without keys leave the identity, and are not read.",
                lambda f: decode(f, AttentionCase((1, 1, 1), (1, 40, 17)), 3),
            ),
            speed.rung(
                "minllm.kernels.attention.split_kv.split_kv:attention",
                speed_problems.attention("split_kv", 32, 1, 2048),
                "something is computed for every key that is needed once for all of them, or an array left the registers.",
            ),
        ),
    ),
    Exercise(
        name="attention.split_merge",
        lesson=9,
        title="Flash-Decoding: merge the states that the splits of a context left",
        module="minllm.kernels.attention.split_kv.merge",
        entry="make_merge_kernel",
        stage="attention",
        own_launcher="minllm.kernels.attention.split_kv.split_kv:attention",
        most_rows=1,
        task="Warp w adds up the splits w, w + warps, ... below used; `split` is w already. The weight of a split is ex2(its maximum - "
        "shift); total takes weight * its sum, and acc[i] takes weight * its output at dim = lane + 32 * i, where that is below head_dim.",
        hints=(
            "A split's output and sum are relative to its own maximum; 2^(m - M) brings them all to the largest one.",
            "Splits at `used` and beyond hold no keys, and nobody wrote their outputs: leave them alone.",
        ),
        rungs=(
            Rung("one split by hand", "the output of a single split is o / l.", one_split),
            Rung("two splits, one maximum", "outputs add up, sums add up, and one division follows.", two_splits),
            Rung("other maxima", "each split's o and l are relative to its own maximum.", other_maxima),
            Rung("huge scores", "2^1000 overflows: only differences of maxima are raised.", huge),
            Rung("many splits, wide heads", "more splits than warps, and more elements than lanes.", many_splits),
            Rung("empty splits", "a split without keys is not read: its output was never written.", empty_splits),
            Rung("byte budget", "an output is read by one warp only.", budget),
        ),
    ),
)
