"""The ladder for quantisation: from numbers to codes, scales and zeros."""

import numpy as np

from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.quantization.formats import kv_format


def quantized(quantize, x, name="int8", group_size=None):
    """Check codes and pairs of x [..., head_dim] against the equations, group by group."""
    x = np.asarray(x, np.float32)
    form = kv_format(name, x.shape[-1], group_size)
    groups = x.reshape(-1, form.group_size).astype(np.float64)
    low, high = groups.min(1), groups.max(1)
    pairs = np.stack([(high - low) / form.levels, low], 1).astype(np.float16)
    got = quantize(x, form)
    if not isinstance(got, tuple) or len(got) != 2:
        raise Mismatch(f"expected (codes, pairs), got {type(got).__name__}.\nLikely cause: both are returned, in one tuple.")
    codes, got_pairs = (np.asarray(one) for one in got)
    check_pairs(got_pairs, pairs, groups, form, (*x.shape[:-1], form.groups, 2))
    check_codes(codes, pairs, groups, form, x.shape)


def check_pairs(got, pairs, groups, form, shape):
    """Check the pairs (scale, zero) of each group, float16."""
    if got.dtype != np.float16:
        raise Mismatch(f"pairs are {got.dtype}; they are kept in float16, and codes are made with what is kept.")
    low, high = groups.min(1), groups.max(1)
    whole = np.full(len(low), (groups.max() - groups.min()) / form.levels), np.full(len(low), groups.min())
    suspects = {
        "the zero comes first here; a pair is (scale, zero).": pairs[:, ::-1],
        f"{form.bits} bits have {form.levels + 1} codes, which lie {form.levels} steps apart.":
            np.stack([(high - low) / (form.levels + 1), low], 1),
        "this is a symmetric scale, largest magnitude over the largest code; from smallest to largest no code is wasted.":
            np.stack([np.abs(groups).max(1) / form.levels, low], 1),
        "one scale was made for all groups; each has its own.": np.stack(whole, 1),
        "the zero is the group's smallest number.": np.stack([(high - low) / form.levels, np.zeros_like(low)], 1),
    }  # fmt: skip
    expect("pairs", got, pairs.reshape(shape), (), [(told, array.reshape(shape)) for told, array in suspects.items()], tolerance=2e-3)


def check_codes(got, pairs, groups, form, shape):
    """Check the codes, which must be computed with the rounded pairs."""
    if got.dtype != np.uint8:
        raise Mismatch(f"codes are {got.dtype}; a code is a byte, uint8.")
    scale, zero = pairs[:, :1].astype(np.float64), pairs[:, 1:].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(scale > 0, (groups - zero) / scale, 0)
        true_scale = (groups.max(1, keepdims=True) - groups.min(1, keepdims=True)) / form.levels
        unrounded = np.where(true_scale > 0, (groups - groups.min(1, keepdims=True)) / true_scale, 0)
        without_zero = np.where(scale > 0, groups / scale, 0)
    whole = np.clip(np.rint(exact), 0, form.levels)
    suspects = {
        "codes were cut, not rounded: half a step of error becomes a whole one.": np.clip(np.floor(exact), 0, form.levels),
        "codes were made with scales that are not kept: round the pairs to float16 first.": np.clip(np.rint(unrounded), 0, form.levels),
        "the zero was not subtracted.": np.clip(np.rint(without_zero), 0, form.levels),
        f"codes were not held between 0 and {form.levels}: rounded scales can lead one step beyond.": np.rint(exact) % 256,
    }
    near_half = np.abs(exact - np.floor(exact) - 0.5) < 1e-3  # float32 may round these codes either way
    found = got.reshape(whole.shape).astype(np.float64)

    def forgiving(codes):
        either = near_half & (np.abs(found - codes) <= 1)
        return np.where(either, found, codes).astype(np.int64).reshape(shape)

    expect("codes", got.astype(np.int64), forgiving(whole), (), [(told, forgiving(codes)) for told, codes in suspects.items()])


def random_heads(*shape):
    """Random heads with realistic components: some are much larger than others, and none is centred on 0."""
    random = np.random.default_rng(0)
    return random.standard_normal(shape) * random.uniform(0.2, 5, shape[-1]) + random.uniform(-3, 3, shape[-1])


EXERCISES = (
    Exercise(
        name="quantization.quantize_groups",
        lesson=13,
        title="keys and values as codes of 8 or 4 bits, with a scale and a zero for each group",
        module="minllm.kernels.quantization.reference",
        entry="quantize_groups",
        task="Cut x [..., head_dim] into kv_format.groups groups of kv_format.group_size. A group's zero is its smallest number, its scale "
        "the distance to its largest in kv_format.levels steps; keep them as float16 pairs (scale, zero). With the kept pairs, code = "
        "round((x - zero) / scale), between 0 and levels. Return (codes as uint8 of x's shape, pairs [..., groups, 2]).",
        hints=(
            "x.reshape(*x.shape[:-1], groups, group_size) brings a group's numbers into the last axis.",
            "A group whose numbers are all alike has scale 0: its codes are 0, and nothing is divided by 0. np.divide has `where`.",
            "np.rint rounds to whole numbers, np.clip holds them between two.",
        ),
        rungs=(
            Rung("one group by hand", "0 to 255 in steps of 1.", lambda f: quantized(f, [[*range(0, 250, 17), 255]])),
            Rung("a range that is not around 0", "the zero is the smallest number.", lambda f: quantized(f, random_heads(1, 32))),
            Rung("heads of several tokens", "each head has its own pair.", lambda f: quantized(f, random_heads(3, 2, 48))),
            Rung("several groups", "int4 has a pair for each 32 components here.", lambda f: quantized(f, random_heads(2, 96), "int4")),
            Rung("rounding", "codes are made with the pairs that are kept.", lambda f: quantized(f, 1000 + 3 * random_heads(4, 64))),
            Rung("all alike", "no division by 0.", lambda f: quantized(f, np.full((2, 32), 1.5))),
        ),
    ),
)  # fmt: skip
