"""Describes what stands out in a wrong array compared with the right one, for mistakes that no suspect predicts.

A missing factor, a wrong sign, an offset of one, an unused index and a wrong edge each leave a pattern that is visible without
knowing the kernel.
"""

from collections.abc import Callable, Sequence

import numpy as np

Same = Callable[[np.ndarray, np.ndarray], bool]


def what_stands_out(got: np.ndarray, expected: np.ndarray, wrong: np.ndarray, axes: Sequence[str], same: Same) -> str:
    """A sentence about `got` where it differs from `expected`, or "".

    wrong: mask of differences; same(a, b): whether all of a equals b.
    """
    if got.ndim == 0 or wrong.sum() < 2 or not (np.isfinite(got[wrong]).all() and np.isfinite(expected[wrong]).all()):
        return ""
    for find in (_constant, _factor, _moved, _unused_index, _region):
        if said := find(got, expected, wrong, [*axes, *[f"axis {i}" for i in range(len(axes), got.ndim)]], same):
            return said
    return ""


def _constant(got, expected, wrong, axes, same) -> str:
    """All wrong elements are 0, or another number."""
    values = got[wrong]
    if (values == values[0]).all() and not (expected[wrong] == expected[wrong][0]).all():
        if values[0] == 0:
            return "every wrong element is 0: nothing was added to it, or its sum was never stored."
        return f"every wrong element is {values[0]:.6g}, whatever it should be."
    return ""


def _factor(got, expected, wrong, axes, same) -> str:
    """All elements are off by the same factor or the same offset."""
    peak = int(np.argmax(np.abs(expected)))
    if not wrong.flat[peak] or wrong.sum() < 3 or (expected == expected.flat[0]).all():
        return ""
    factor = float(got.flat[peak]) / float(expected.flat[peak])
    if factor and same(got / factor, expected):
        if abs(factor + 1) < 1e-3:
            return "every element has the other sign."
        return f"every element is {factor:.4g} times what it should be: a factor is missing, or taken twice."
    added = float(got.flat[peak]) - float(expected.flat[peak])
    if same(got - added, expected):
        return f"every element is {abs(added):.4g} too {'large' if added > 0 else 'small'}: the same amount everywhere."
    return ""


def _moved(got, expected, wrong, axes, same) -> str:
    """Along some axis every element is shifted by one, or the order is reversed, or two axes are exchanged."""
    for axis, name in enumerate(axes):
        size = got.shape[axis]
        if size < 3:
            continue
        front, back = range(size - 1), range(1, size)
        if same(got.take(back, axis), expected.take(front, axis)):
            return f"{name} i has the numbers of {name} i - 1: an index is off by one."
        if same(got.take(front, axis), expected.take(back, axis)):
            return f"{name} i has the numbers of {name} i + 1: an index is off by one."
        if same(np.flip(got, axis), expected):
            return f"the order along {name} is reversed."
    for first in range(got.ndim):
        for second in range(first + 1, got.ndim):
            if got.shape[first] == got.shape[second] and same(np.swapaxes(got, first, second), expected):
                return f"{axes[first]} and {axes[second]} are exchanged."
    return ""


def _unused_index(got, expected, wrong, axes, same) -> str:
    """All slices along some axis are equal."""
    for axis, name in enumerate(axes):
        first = got.take([0], axis)
        alike = same(expected, np.broadcast_to(expected.take([0], axis), got.shape))
        if got.shape[axis] > 1 and same(got, np.broadcast_to(first, got.shape)) and not alike:
            return f"every {name} has the same numbers: the index of the {name} is not used somewhere."
    return ""


def _region(got, expected, wrong, axes, same) -> str:
    """Wrong elements begin, or end, somewhere along an axis."""
    for axis, name in enumerate(axes):
        others = tuple(i for i in range(got.ndim) if i != axis)
        bad = np.flatnonzero(wrong.any(axis=others) if others else wrong)
        size = got.shape[axis]
        if size < 3 or len(bad) == size:
            continue
        if len(bad) == 1:
            where = {0: "the first", size - 1: "the last"}.get(int(bad[0]), f"number {bad[0]}")
            return f"all that is wrong belongs to one {name}, {where} of {size}."
        if bad[-1] == size - 1 and len(bad) == size - bad[0]:
            return f"{_up_to(name, bad[0] - 1, 'right')}; from {name} {bad[0]} on all is wrong."
        if bad[0] == 0 and len(bad) == bad[-1] + 1:
            return f"{_up_to(name, bad[-1], 'wrong')}; from {name} {bad[-1] + 1} on all is right."
    return ""


def _up_to(name: str, last: int, what: str) -> str:
    """The indices 0 to `last`, in words."""
    return f"{name} 0 is {what}" if last == 0 else f"{name} 0 to {last} are {what}"
