"""Ladders for the steps between projection and attention: RoPE, and the append to the cache."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.kv.ladder.append import BLOCK
from minllm.kernels.rope.reference import rope_table
from minllm.sim import unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def turned(x, positions, cos_sin, interleaved, sign=1):
    """x with its pairs rotated, in float64; sign -1 rotates in the opposite direction."""
    x, half = x.astype(np.float64), cos_sin.shape[1] // 2
    rows = cos_sin.astype(np.float64)[positions][:, None]
    cosine, sine = rows[..., :half], sign * rows[..., half:]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    out = x.copy()
    out[..., first] = x[..., first] * cosine - x[..., second] * sine
    out[..., second] = x[..., second] * cosine + x[..., first] * sine
    return out


def turn(rope, tokens=1, heads=1, head_dim=4, rotary_dim=None, positions=None, interleaved=False, in_place=False, dtype=np.float32):
    """Rotate random heads and compare; half-split sizes are chosen to select the kernel for any size, not the vector kernel."""
    random = np.random.default_rng(0)
    rotary_dim = rotary_dim or head_dim
    table = rope_table(32, rotary_dim, 10000.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim))
    positions = np.int32(positions or [3] * tokens)
    x = random.standard_normal((tokens, heads, head_dim)).astype(dtype)
    given, out = x.copy(), unwritten(x.shape, dtype)
    if in_place:
        out = given
    rope(given, positions, table, out, interleaved)
    overwritten = turned(x, positions, table, interleaved)
    half = rotary_dim // 2
    pairs = (np.s_[..., 0:rotary_dim:2], np.s_[..., 1:rotary_dim:2]) if interleaved else (np.s_[..., :half], np.s_[..., half:rotary_dim])
    cosine, sine = table[positions][:, None, :half], table[positions][:, None, half:]
    overwritten[pairs[1]] = x[pairs[1]] * cosine + overwritten[pairs[0]] * sine
    half_backwards = [turned(x, positions, table, interleaved) for _ in pairs]
    for wrong, pair in zip(half_backwards, pairs):
        wrong[pair] = turned(x, positions, table, interleaved, -1)[pair]
    exchanged = turned(x, positions, np.concatenate([table[:, half:], table[:, :half]], axis=1), interleaved)
    first_exchanged = turned(x, positions, table, interleaved)
    first_exchanged[pairs[0]] = exchanged[pairs[0]]
    suspects = [
        ("the pairs turned the other way: a cos - b sin, and b cos + a sin.", turned(x, positions, table, interleaved, -1)),
        ("the first component has the wrong sign: it is a cos - b sin.", half_backwards[0]),
        ("the second component has the wrong sign: it is b cos + a sin.", half_backwards[1]),
        ("cosine and sine are exchanged: a cos - b sin, and b cos + a sin.", exchanged),
        ("cosine and sine are exchanged in the first component: a cos - b sin.", first_exchanged),
        ("the second component was made from the first after that had been turned: read both first.", overwritten),
        ("the angle comes from the token's place in the batch; it must come from positions[token].",
         turned(x, np.arange(tokens), table, interleaved)),
        ("cosine and sine were taken from places 2 pair and 2 pair + 1; the table has all cosines first, then all sines.",
         turned(x, positions, np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1), interleaved)),
        ("the other layout of pairs: (i, i + half), or (2i, 2i + 1) if interleaved.", turned(x, positions, table, not interleaved)),
        ("nothing was turned.", x.astype(np.float64)),
    ]  # fmt: skip
    if rotary_dim < head_dim and not interleaved:
        behind = np.full(x.shape, np.nan)  # the gap between the two halves is never written; elements beyond rotary_dim are copied
        behind[..., rotary_dim:] = x[..., rotary_dim:]
        a, b = x[..., :half], x[..., head_dim // 2 : head_dim // 2 + half]
        behind[..., :half] = a * cosine - b * sine
        behind[..., head_dim // 2 : head_dim // 2 + half] = b * cosine + a * sine
        suspects.append(("pairs were made of the halves of the head; they are made of the halves of its first rotary_dim numbers.", behind))
    expect("out", out, turned(x, positions, table, interleaved), ("token", "head", "dim"), suspects)


def turn_sizes(rope):
    """More pairs than lanes, and more heads than a block handles."""
    for heads, head_dim in ((1, 2), (5, 62), (3, 66), (2, 130)):
        turn(rope, heads=heads, head_dim=head_dim)


def appended(append, slots, row=3, dtype=np.float32):
    """Append rows of keys and values to pages that already hold data."""
    random = np.random.default_rng(0)
    tokens = len(slots)
    key, value = (random.standard_normal((tokens, 1, row)).astype(dtype) for _ in range(2))
    shape = (4, 4, 1, row)  # [pages, block_size, kv_heads, head_dim]
    key_cache, value_cache = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    before = key_cache.copy(), value_cache.copy()
    append(key, value, key_cache, value_cache, np.int32(slots))
    kept = [slot >= 0 for slot in slots]
    written = (("key_cache", key_cache, before[0], key, value), ("value_cache", value_cache, before[1], value, key))
    for name, got, old, new, other in written:
        expected, swapped, in_order, once = (old.reshape(-1, row).copy() for _ in range(4))
        expected[np.array(slots)[kept]] = new[kept, 0]
        swapped[np.array(slots)[kept]] = other[kept, 0]
        in_order[np.arange(tokens)] = new[:, 0]
        once[np.array(slots)[kept], :BLOCK] = new[kept, 0, :BLOCK]
        suspects = [
            ("keys and values are exchanged.", swapped),
            ("token t was written to slot t; it belongs to slot_mapping[t].", in_order),
            ("each thread copied one element; a row may have more elements than the block has threads.", once),
            ("nothing was written.", old.reshape(-1, row)),
        ]
        expect(name, got.reshape(-1, row), expected, ("slot", "i"), suspects)


def append_budget(append):
    """Check that the append moves no more bytes than a copy."""
    key, value = np.ones((2, 1, 131), np.float32), np.ones((2, 1, 131), np.float32)
    caches = [np.zeros((2, 4, 1, 131), np.float32) for _ in range(2)]
    run = functools.partial(append, key, value, *caches, np.int32([5, 2]))
    amounts = {"key": key.nbytes, "value": value.nbytes}
    expect_bytes(run, amounts, {"key_cache": key.nbytes, "value_cache": value.nbytes}, "each element is copied by one thread.")


EXERCISES = (
    Exercise(
        name="rope.rotate",
        lesson=6,
        title="turn each pair of a head by its position's angle",
        module="minllm.kernels.rope.ladder.rope",
        entry="rope",
        task="This lane turns the pairs pair, pair + WARP, ... below half: read cosine and sine of the position, read both "
        "components (at pair "
        "and half + pair, or at 2 pair and 2 pair + 1 if interleaved), then write a cos - b sin and b cos + a sin to out.",
        hints=(
            "cos_sin[position] holds `half` cosines and then `half` sines.",
            "out may be x: read both components before you write either.",
        ),
        rungs=(
            Rung("one pair by hand", "a pair turns like a vector in the plane.", lambda rope: turn(rope, head_dim=2)),
            Rung("half-split pairs", "component i belongs with i + half.", lambda rope: turn(rope, head_dim=6)),
            Rung("interleaved pairs", "component 2i belongs with 2i + 1.", lambda rope: turn(rope, head_dim=8, interleaved=True)),
            Rung("positions", "the angle comes from the token's position, not from its row.",
                 lambda rope: turn(rope, 3, positions=[7, 0, 30])),
            Rung("in place", "out may be x itself.", lambda rope: turn(rope, 2, 2, 6, in_place=True)),
            Rung("sizes around a warp", "more pairs than lanes, more heads than warps.", turn_sizes),
            Rung("part of a head", "what lies behind rotary_dim passes unchanged.", lambda rope: turn(rope, 2, 2, 10, rotary_dim=6)),
            Rung("bfloat16", "stored in 16 bits, turned in 32.", lambda rope: turn(rope, 2, 2, 8, dtype=BFLOAT16)),
            speed.rung("minllm.kernels.rope.ladder.rope:rope", speed_problems.rope,
                       "neighbouring lanes do not take neighbouring pairs, or a pair's components are loaded more than once."),
        ),
    ),
    Exercise(
        name="kv.append",
        lesson=8,
        title="write new keys and values to their slots in the paged cache",
        module="minllm.kernels.kv.ladder.append",
        entry="append",
        task="Find this block's token and its slot. A slot of -1 (or below 0) writes nothing. Else thread i copies elements i, i "
        "+ BLOCK, ... of the "
        "token's key and value rows into row `slot` of the caches.",
        hints=(
            "The launcher has flattened everything: key and value are [T, R], the caches [slots, R].",
            "A slot is block * block_size + offset, so a row of the flattened cache; no division is needed.",
        ),
        rungs=(
            Rung("one token", "its key and its value, each to its cache.", lambda append: appended(append, [0])),
            Rung("the requested slot", "token t goes to slot_mapping[t].", lambda append: appended(append, [6, 1])),
            Rung("non-consecutive pages", "slots follow the pages, which lie anywhere.", lambda append: appended(append, [14, 3, 9, 2])),
            Rung("padding", "a slot of -1 writes nothing, and -1 is not the last slot.", lambda append: appended(append, [5, -1, 2])),
            Rung("rows around the block's size", "a thread takes every 128th element.",
                 lambda append: [appended(append, [2, 5], row=row) for row in (1, 127, 129, 259)]),
            Rung("bfloat16", "a copy, whatever the dtype.", lambda append: appended(append, [4, 1], dtype=BFLOAT16)),
            Rung("byte budget", "each element is read once and written once.", append_budget),
            speed.rung("minllm.kernels.kv.ladder.append:append", speed_problems.append,
                       "neighbouring threads do not copy neighbouring elements, or all elements fall to few threads."),
        ),
    ),
)  # fmt: skip
