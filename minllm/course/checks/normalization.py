"""Ladders for the normalisation kernels."""

import functools

import ml_dtypes
import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.normalization.row import THREADS
from minllm.sim import unwritten

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EPSILON = 1e-5
MEAN = "you divided the sum of squares by something else than the row's length: the mean is over `hidden` elements."
NOT_SQUARED = "the numbers were added up, not their squares."
NO_EPSILON = "epsilon was left out; it belongs inside the root, added to the mean of the squares."
NO_WEIGHT = "the weight was not multiplied in."
NOT_ROOT = "the row was multiplied by 1 / mean square; it takes 1 / its root (libdevice.rsqrtf)."
NOT_INVERSE = "the row was multiplied by its root mean square; it is divided by it (libdevice.rsqrtf gives 1 / root)."
ONE_THREAD = "each thread took the sum of its own squares; block_sum adds up those of all threads of the block."
CENTRED = "the mean was subtracted: that is LayerNorm. RMSNorm leaves it in."


def normalise(rms_norm, x, weight, residual=None, epsilon=EPSILON):
    """Run the reader's norm on copies, and compare the result and the residual stream."""
    out, stream = unwritten(x.shape, x.dtype), None if residual is None else residual.copy()
    rms_norm(x.copy(), weight, out, epsilon, stream)
    wide, scale = x.astype(np.float64), weight.astype(np.float64)
    if residual is not None:
        summed = (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
        kept = ("the sum of x and residual was not written back: the next layer adds to it.", residual)
        alone = ("x was stored without the residual: add the residual's numbers to values first.", x)
        expect("residual", stream, summed, ("token", "feature"), [kept, alone])
        wide = summed.astype(np.float64)
    mean_square = (wide**2).mean(1, keepdims=True)
    suspects = [
        (NO_EPSILON, wide / np.sqrt(mean_square) * scale),
        (NO_WEIGHT, wide / np.sqrt(mean_square + epsilon)),
        (NOT_SQUARED, wide / np.sqrt(wide.mean(1, keepdims=True) + epsilon) * scale),
        (MEAN, wide / np.sqrt(mean_square * wide.shape[1] + epsilon) * scale),
        (NOT_INVERSE, wide * np.sqrt(mean_square + epsilon) * scale),
        (ONE_THREAD, wide / np.sqrt(squares_of_a_vector(wide, x.dtype) / wide.shape[1] + epsilon) * scale),
        (NOT_ROOT, wide / (mean_square + epsilon) * scale),
        (CENTRED, (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + epsilon) * scale),
    ]
    if residual is not None:
        plain = x.astype(np.float64)
        without = plain / np.sqrt((plain**2).mean(1, keepdims=True) + epsilon) * scale
        suspects.append(("the norm was taken of x alone, before the residual was added.", without))
    expect("out", out, wide / np.sqrt(mean_square + epsilon) * scale, ("token", "feature"), suspects)


def squares_of_a_vector(wide, dtype):
    """For each element, the sum of squares of its 16-byte vector, the partial sum of one thread for a short row."""
    width = 16 // np.dtype(dtype).itemsize
    return np.repeat((wide**2).reshape(len(wide), -1, width).sum(2), width, axis=1)


def rows(tokens, hidden, dtype=np.float32, seed=0):
    """Random x, weight and residual."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in ((tokens, hidden), hidden, (tokens, hidden))]


def by_hand(rms_norm):
    """Check a row of threes, with root mean square 3."""
    normalise(rms_norm, np.full((1, 4), 3, np.float32), np.ones(4, np.float32))


def ragged(rms_norm):
    """Check rows shorter and longer than the threads of a block."""
    for hidden in (4, 124, 128, 132, 1028):
        normalise(rms_norm, *rows(1, hidden)[:2])


def several_pieces(rms_norm):
    """Check a row for which a thread holds more than one vector."""
    normalise(rms_norm, *rows(1, 4 * (THREADS + 1))[:2])


def with_epsilon(rms_norm):
    """Check numbers so small that epsilon matters."""
    x, weight, _ = rows(1, 8)
    normalise(rms_norm, x * np.float32(0.1), weight, epsilon=0.5)


def with_residual(rms_norm):
    """Check that the sum with the residual is stored and normalised."""
    x, weight, residual = rows(2, 36)
    normalise(rms_norm, x, weight, residual)


def as_rounded(rms_norm):
    """Check bfloat16: the stored, rounded sum is normalised, and squares are added in float32."""
    x, weight, residual = rows(2, 264, BFLOAT16)
    normalise(rms_norm, (x.astype(np.float32) * 100).astype(BFLOAT16), weight, residual)


def several_tokens(rms_norm):
    """Check several rows, which have different root mean squares."""
    x, weight, _ = rows(3, 128)
    normalise(rms_norm, x * np.float32([[1], [10], [100]]), weight)


def budget(rms_norm):
    """Check that every element is read once and written once."""
    x, weight, residual = rows(2, 256)
    out = unwritten(x.shape, x.dtype)
    advice = "the row is read a second time to scale it; keep it in the thread's local array `values`."
    read = {"x": x.nbytes, "residual": residual.nbytes, "weight": 2 * weight.nbytes}
    write = {"residual": residual.nbytes, "out": out.nbytes}
    expect_bytes(functools.partial(rms_norm, x, weight, out, EPSILON, residual), read, write, advice)


def by_equation(reference, x, weight, epsilon=EPSILON, residual=None):
    """Compare the reader's NumPy function with a loop over rows in float64."""
    got = reference(x, weight, epsilon, residual)
    stream = x if residual is None else (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
    wide, scale = stream.astype(np.float64), weight.astype(np.float64)
    mean = np.array([[sum(number * number for number in row) / len(row)] for row in wide])
    suspects = [
        (NO_EPSILON, wide / np.sqrt(mean) * scale),
        (NO_WEIGHT, wide / np.sqrt(mean + epsilon)),
        (NOT_SQUARED, wide / np.sqrt(np.maximum(wide.mean(1, keepdims=True) + epsilon, 0)) * scale),
        (NOT_ROOT, wide / (mean + epsilon) * scale),
        ("each token has a mean of its own: axis=-1, keepdims=True.", wide / np.sqrt(mean.mean() + epsilon) * scale),
        (CENTRED, (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + epsilon) * scale),
    ]
    expect("normalized", got[0], (wide / np.sqrt(mean + epsilon) * scale).astype(x.dtype), ("token", "feature"), suspects)
    expect("new_residual", got[1], stream, ("token", "feature"))


EXERCISES = (
    Exercise(
        name="normalization.equation",
        lesson=6,
        title="RMSNorm in NumPy",
        module="minllm.kernels.normalization.rms_norm",
        entry="rms_norm_reference",
        task="mean_square is the mean of each row's squares, [T, 1]; normalized is values / sqrt(mean_square + epsilon) * weight.",
        hints=(
            ".mean(axis=-1, keepdims=True) is the mean of each row, in a shape that divides it.",
            "wide.type(epsilon) and weight.astype(wide) keep the computation in float32.",
        ),
        rungs=(
            Rung(
                "one row by hand",
                "a row of threes has a root mean square of 3, and becomes ones.",
                lambda f: by_equation(f, np.full((1, 4), 3, np.float32), np.ones(4, np.float32)),
            ),
            Rung(
                "another sign",
                "squares are positive, whatever the sign.",
                lambda f: by_equation(f, np.float32([[1, -1, 2, -3]]), np.ones(4, np.float32)),
            ),
            Rung(
                "epsilon",
                "epsilon is added to the mean square, inside the root.",
                lambda f: by_equation(f, np.full((1, 4), 0.1, np.float32), np.ones(4, np.float32), 0.5),
            ),
            Rung("the weight", "each feature has a weight.", lambda f: by_equation(f, *rows(1, 8)[:2])),
            Rung(
                "several tokens",
                "each token is normalised by itself.",
                lambda f: by_equation(f, np.float32([[1, 2], [30, -40]]), np.float32([1, 2])),
            ),
            Rung("residual", "the sum with the residual is normalised.", lambda f: by_equation(f, *rows(2, 8)[:2], residual=rows(2, 8)[2])),
        ),
    ),
    Exercise(
        name="normalization.rms_norm",
        lesson=6,
        title="RMSNorm in one kernel, the row held in registers",
        module="minllm.kernels.normalization.rms_norm",
        entry="rms_norm",
        stage="rms_norm",
        task="The row is in values, the weight in weights, and sum_of_squares holds the squares of this thread's numbers. inverse_rms is "
        "1 / sqrt(mean square + epsilon), with the sum over the block from block_sum(sum_of_squares, partials). Then scale each piece of "
        "the row that lies inside it, and store it in out.",
        hints=(
            "A piece begins at element i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width of the row, and at = piece * width of "
            "the thread's own arrays; the last threads may lie beyond `hidden`.",
            "store(out, row + i, values, at) writes values[at : at + width].",
            "libdevice.rsqrtf(v) is 1 / sqrt(v). Every thread calls block_sum, those without a piece too: it has a barrier inside.",
        ),
        rungs=(
            Rung("one row by hand", "a row of threes has a root mean square of 3, and becomes ones.", by_hand),
            Rung("epsilon", "epsilon is added to the mean square, inside the root.", with_epsilon),
            Rung("rows around the block's size", "threads beyond the row's end have no piece, but are at the barrier.", ragged),
            Rung(
                "several pieces a thread",
                "a thread's piece lies at `at` of its own arrays.",
                several_pieces,
                look="values[at + k], weights[at + k] and store(out, row + i, values, at): each piece has its place.",
            ),
            Rung("several tokens", "each block normalises its own row.", several_tokens),
            Rung("residual", "the sum with the residual is normalised, and kept for the next layer.", with_residual),
            Rung("bfloat16", "the sum is rounded to the dtype before it is normalised; squares are added in float32.", as_rounded),
            Rung("byte budget", "every element of the row comes from memory once.", budget),
            speed.rung(
                "minllm.kernels.normalization.rms_norm:rms_norm",
                speed_problems.rms_norm,
                "the row is loaded twice, or element by element: load and store move 16 bytes of a thread at a time.",
            ),
        ),
    ),
)
