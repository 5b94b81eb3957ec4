"""Describes the first wrong element of an array: its position, the expected and the actual value, and the likely cause.

A suspect is the result of a certain mistake. If the array equals it, the message names the mistake; otherwise pattern.py describes what
stands out in the numbers.
"""

from collections.abc import Iterable

import numpy as np

from minllm.course.checks.evidence import note
from minllm.course.checks.pattern import what_stands_out

TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "float16": 4e-3, "bfloat16": 2e-2}  # relative to the largest expected number
UNWRITTEN = "nobody wrote this element. Does the grid cover it, and does a guard leave it out by mistake?"
NOT_A_NUMBER = (
    "NaN comes from inf / inf, 0 / 0 or -inf - -inf, or from memory that nobody wrote or that is not yours to read: here that is all NaN."
)


class Mismatch(Exception):
    """A wrong result; the message gives the position and the likely cause."""


def expect(
    name: str,
    got,
    expected: np.ndarray,
    axes: Iterable[str] = (),
    suspects: Iterable[tuple[str, np.ndarray]] = (),
    tolerance: float | None = None,
) -> None:
    """Raise Mismatch at the first element of `got` that differs from `expected`.

    tolerance: the allowed difference relative to the largest expected number. axes: what each axis counts. suspects: (mistake, its result),
    the likeliest first.
    """
    if got is None:
        raise Mismatch(f"{name} is None.\nLikely cause: the function ends without `return`.")
    got, expected, axes = np.asarray(got), np.asarray(expected), [*axes]
    note(name, got, expected, tolerance)
    if got.shape != expected.shape:
        raise Mismatch(f"{name} has shape {got.shape}; expected {expected.shape}")
    wrong = differing(got, expected, tolerance)
    if not wrong.any():
        return
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = ", ".join(f"{axis} {i}" for axis, i in zip([*axes, *[""] * len(at)], at)) if axes else ", ".join(map(str, at))
    place = f"{name}[{where}]" if at else name
    lines = [f"{place}: expected {number(expected[at])}, got {number(got[at])} ({wrong.sum()} of {wrong.size} wrong)"]
    if cause := likely_cause(got, at, suspects, tolerance):
        lines.append(f"Likely cause: {cause}")
    elif seen := seen_in(got, expected, wrong, axes, tolerance):
        lines.append(f"What stands out: {seen}")
    raise Mismatch("\n".join(lines))


def differing(got: np.ndarray, expected: np.ndarray, tolerance: float | None = None) -> np.ndarray:
    """A mask of the elements that differ."""
    if not np.issubdtype(expected.dtype, np.number) or np.issubdtype(expected.dtype, np.integer):
        return np.asarray(got != expected)
    tolerance = TOLERANCE.get(got.dtype.name, 1e-6) if tolerance is None else tolerance
    exact = expected.astype(np.float64)
    finite = exact[np.isfinite(exact)]
    bound = tolerance * (np.abs(finite).max(initial=0) or 1)
    found = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(found - exact) <= bound) | (found == exact))


def likely_cause(got: np.ndarray, at: tuple, suspects, tolerance: float | None) -> str:
    """The mistake of the suspect that equals the result, NaN included, or a remark about the element itself; "" if none."""
    for mistake, array in suspects:
        array = np.asarray(array)
        if array.shape == got.shape and not (differing(got, array, tolerance) & ~both_nan(got, array)).any():
            return mistake
    element = np.ascontiguousarray(got[at])
    if element.dtype.kind not in "iub" and (element.reshape(-1).view(np.uint8) == 0xFF).all():
        return UNWRITTEN
    if element.dtype.kind not in "iub" and np.isnan(element.astype(np.float64)):
        return NOT_A_NUMBER
    if left := untouched(got):
        return f"{left} of {got.size} elements were never written. Do several threads store at the same place?"
    return ""


def untouched(got: np.ndarray) -> int:
    """Number of unwritten elements of a floating-point array."""
    if got.dtype.kind in "iub" or got.ndim == 0:
        return 0
    return int((np.ascontiguousarray(got).view(np.uint8).reshape(got.size, -1) == 0xFF).all(axis=1).sum())


def seen_in(got: np.ndarray, expected: np.ndarray, wrong: np.ndarray, axes: list[str], tolerance: float | None) -> str:
    """A sentence about what stands out in a wrong array, or ""."""
    tolerance = TOLERANCE.get(got.dtype.name, 1e-6) if tolerance is None else tolerance
    numbers = got.astype(np.float64), expected.astype(np.float64)
    return what_stands_out(*numbers, wrong, axes[: got.ndim], lambda a, b: not differing(a, b, tolerance).any())


def both_nan(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A mask of the elements that are NaN in both arrays."""
    return np.isnan(first.astype(np.float64)) & np.isnan(second.astype(np.float64))


def number(value) -> str:
    """A number with six digits."""
    return str(value) if isinstance(value, (np.integer, np.bool_)) else f"{float(value):.6g}"
