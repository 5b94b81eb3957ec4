"""Ladders for first kernels: one thread per element, and a block that loops over a row."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.sim import unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def relu_of(relu, x):
    """Check max(x, 0) for x [n]."""
    x = np.float32(x)
    out = unwritten(x.shape, np.float32)
    relu(x, out)
    suspects = [
        ("the numbers pass as they are: where x[i] is negative, out[i] is 0.", x),
        ("this keeps the negative numbers: take the larger of x[i] and 0.", np.minimum(x, 0)),
        ("this drops the sign: where x[i] is negative, out[i] is 0.", np.abs(x)),
        ("every thread read another thread's element: thread i reads x[i].", np.maximum(np.full_like(x, x[0]), 0)),
    ]
    expect("out", out, np.maximum(x.astype(np.float64), 0), ("i",), suspects)


def relu_sizes(relu):
    """Sizes around the block's 32 threads."""
    for size in (1, 31, 32, 33, 70):
        relu_of(relu, np.random.default_rng(0).standard_normal(size))


def relu_budget(relu):
    """Check for one read and one write per element."""
    x, out = np.float32([1, -1] * 20), unwritten((40,), np.float32)
    expect_bytes(functools.partial(relu, x, out), {"x": x.nbytes}, {"out": out.nbytes}, "x[i] is read twice; keep it in a variable.")


def gate(silu, gate_up):
    """Check silu(gate) * up for gate_up [tokens, 2 * intermediate]; odd sizes select the kernel for any size."""
    out = unwritten((len(gate_up), gate_up.shape[1] // 2), gate_up.dtype)
    silu(gate_up, out)
    wide = gate_up.astype(np.float64)
    first, second = np.split(wide, 2, axis=1)
    sigmoid, other = 1 / (1 + np.exp(-first)), 1 / (1 + np.exp(-second))
    in_turns = wide[:, ::2] / (1 + np.exp(-wide[:, ::2])) * wide[:, 1::2]
    next_gate = np.roll(wide, -1, axis=1)[:, : first.shape[1]]
    suspects = [
        ("gate and up are exchanged: the gate is the first half of the row.", second * other * first),
        ("this is sigmoid(gate) * up; silu(gate) is gate * sigmoid(gate).", sigmoid * second),
        ("up was read where the gate is: it lies `intermediate` elements further in the row.", first * sigmoid * first),
        ("up is missing.", first * sigmoid),
        ("gate and up were taken from neighbouring elements; all gates come first, then all ups.", in_turns),
        ("the gate passed without its sigmoid.", first * second),
        ("the sigmoid has the wrong sign: silu(gate) is gate * sigmoid(gate).", first * (1 - sigmoid) * second),
        ("the gate was read an element too far: this thread's is gate_up[token, i].", next_gate / (1 + np.exp(-next_gate)) * second),
    ]
    expect("out", out, first * sigmoid * second, ("token", "i"), suspects)


def gates(tokens, intermediate, dtype=np.float32):
    """Random gate and up, [tokens, 2 * intermediate]."""
    return np.random.default_rng(0).standard_normal((tokens, 2 * intermediate)).astype(dtype)


def gate_sizes(silu):
    """Sizes around the block's 64 threads."""
    for intermediate in (1, 63, 65, 129):
        gate(silu, gates(1, intermediate))


def gate_budget(silu):
    """Check for two reads and one write per element."""
    gate_up, out = gates(2, 67), unwritten((2, 67), np.float32)
    run = functools.partial(silu, gate_up, out)
    expect_bytes(run, {"gate_up": gate_up.nbytes}, {"out": out.nbytes}, "the gate is read twice; keep it in a variable.")


def rows_of(embedding, token_ids, vocabulary, hidden, with_positions=False, dtype=np.float32):
    """Check the lookup of rows; odd sizes select the kernel for any size."""
    random = np.random.default_rng(0)
    table, places = (random.standard_normal((vocabulary, hidden)).astype(dtype) for _ in range(2))
    token_ids = np.int32(token_ids)
    positions = np.arange(len(token_ids), dtype=np.int32)[::-1].copy() + 1
    out = unwritten((len(token_ids), hidden), dtype)
    embedding(token_ids, table, out, *((positions, places) if with_positions else ()))
    exact = table.astype(np.float64)
    expected = exact[token_ids] + (places.astype(np.float64)[positions] if with_positions else 0)
    suspects = [("row t of the table was copied; token t asks for row token_ids[t].", exact[: len(token_ids)])]
    if with_positions:
        suspects.append(("the position's row was not added.", exact[token_ids]))
        suspects.append(("the position's row stands alone: the token's row belongs to it.", places.astype(np.float64)[positions]))
        wrong = exact[token_ids] + places.astype(np.float64)[token_ids]
        suspects.append(("the position table was read at the token's id; it is read at positions[t].", wrong))
    expect("out", out, expected, ("token", "i"), suspects)


def row_sizes(embedding):
    """Sizes around the block's 256 threads."""
    for hidden in (1, 255, 257, 515):
        rows_of(embedding, [3, 0], 4, hidden)


def row_budget(embedding):
    """Check that each element of the requested rows is read once."""
    table, out = np.ones((9, 67), np.float32), unwritten((2, 67), np.float32)
    run = functools.partial(embedding, np.int32([4, 8]), table, out)
    expect_bytes(run, {"embedding": out.nbytes}, {"out": out.nbytes}, "each thread copies every 256th element, and no other.")


EXERCISES = (
    Exercise(
        name="activation.relu",
        lesson=2,
        title="your first kernel: max(x, 0), one thread per element",
        module="minllm.course.relu",
        entry="relu",
        task="If element i exists (i < out.size), store the larger of x[i] and 0 in out[i].",
        hints=("The grid is rounded up to whole blocks of 32 threads: the threads beyond the last element must do nothing.",
               "max(a, b) works in a kernel as it does in Python."),
        rungs=(
            Rung("one element by hand", "one thread of the block has something to do.", lambda relu: relu_of(relu, [5])),
            Rung("both signs", "a negative number becomes 0, a positive one stays.", lambda relu: relu_of(relu, [2, -3, 0, -1, 4])),
            Rung("sizes around the block's edge", "31, 32 or 33 elements: i < out.size.", relu_sizes),
            Rung("byte budget", "one element is read for each that is written.", relu_budget),
        ),
    ),
    Exercise(
        name="activation.silu",
        lesson=2,
        title="the gate of a feed-forward layer: silu(gate) * up",
        module="minllm.kernels.activation.silu",
        entry="silu_and_multiply",
        stage="silu_and_multiply",
        own_launcher="minllm.kernels.activation.silu:silu_and_multiply_by_element",  # the entry takes the vector kernel where it can
        task="If this thread's element i exists (i < intermediate): read the gate, gate_up[token, i], and up, which lies `intermediate` "
        "elements further, as float32, and store gate * sigmoid(gate) * up in out[token, i].",
        hints=(
            "The grid is rounded up to whole blocks of 64 threads; those beyond the row must do nothing.",
            "float32(gate_up[token, i]) reads an element; sigmoid is a device function, called like any other.",
        ),
        rungs=(
            Rung("one element by hand", "silu(0) is 0, and one thread of the block has something to do.",
                 lambda silu: gate(silu, np.float32([[0, 5]]))),
            Rung("both halves", "the gate is the first half of a row, up the second.",
                 lambda silu: gate(silu, np.float32([[1, 2, 3, 4, 5, 6]]))),
            Rung("sizes around the block's edge", "63, 64 or 65 elements: i < intermediate.", gate_sizes),
            Rung("several tokens", "a row has 2 * intermediate elements, blockIdx.x says which.", lambda silu: gate(silu, gates(3, 7))),
            Rung("huge gates", "silu(-1000) is 0, silu(1000) is 1000, and nothing is NaN.",
                 lambda silu: gate(silu, np.float32([[-1000, 1000, -88, 1, 1, 1]]))),
            Rung("bfloat16", "numbers are stored in 16 bits and computed in 32.", lambda silu: gate(silu, gates(2, 9, BFLOAT16))),
            Rung("byte budget", "two elements are read for each that is written.", gate_budget),
            speed.rung("minllm.kernels.activation.silu:silu_and_multiply", speed_problems.silu,
                       "neighbouring threads do not take neighbouring elements, or a thread does more than its own."),
        ),
    ),
    Exercise(
        name="embedding.lookup",
        lesson=2,
        title="look a token's row up: a block walks a row",
        module="minllm.kernels.embedding.lookup",
        entry="embedding",
        task="Thread i of the block copies elements i, i + BLOCK, i + 2 BLOCK, ... of embedding's row `row` into out[token]. Where "
        "has_positions, it adds the same element of position_embedding's row positions[token], both as float32.",
        hints=(
            "A while loop with i += BLOCK at its end: a row may be longer or shorter than the block.",
            "The size of a row is out.shape[1].",
        ),
        rungs=(
            Rung("one element by hand", "a row of one element: all threads but the first have nothing to do.",
                 lambda embedding: rows_of(embedding, [1], 3, 1)),
            Rung("the requested row", "token t gets the row of its id, not row t.",
                 lambda embedding: rows_of(embedding, [4, 1, 4], 5, 3)),
            Rung("rows around the block's size", "a thread takes every 256th element, until the row ends.", row_sizes),
            Rung("positions", "positions[t] says which row is added.", lambda embedding: rows_of(embedding, [2, 0, 1], 9, 5, True)),
            Rung("bfloat16 with positions", "the sum is formed in float32.",
                 lambda embedding: rows_of(embedding, [2, 0], 9, 3, True, BFLOAT16)),
            Rung("byte budget", "every element is read once.", row_budget),
            speed.rung("minllm.kernels.embedding.lookup:embedding", speed_problems.embedding,
                       "neighbouring threads do not take neighbouring elements: i and i + BLOCK belong to one thread, i and i + 1 do not."),
        ),
    ),
)  # fmt: skip
