"""The results of a reader's functions that a check saw, so that another process can judge them again.

`minllm check` runs a reader's file in a child process, in which the file's code could write the report itself, or replace the functions
that compare. So the child's verdict is not trusted. Every check notes the results that it compares; the child reports them as plain bytes;
and the parent, in which no code of the file runs, runs the same checks on the package's solution and compares the results with the values
that it expects itself (`check_process`). To pass, a file must deliver right results. If these come from the package's own functions, no
comparison of results can detect it.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Note:
    """A result, the expected value (None: exactly the solution's result), and the tolerance for `mismatch.differing`."""

    name: str
    got: object
    expected: object = None
    tolerance: float | None = None


class _Notes:
    """The list to which results are added; None if they are not collected."""

    current: list[Note] | None = None


def note(name: str, got: object, expected: object = None, tolerance: float | None = None) -> None:
    """Record a result, if results are being collected."""
    if _Notes.current is not None:
        got = np.array(got) if isinstance(got, np.ndarray) else got  # the caller may write into it later
        _Notes.current.append(Note(name, got, expected, tolerance))


@contextmanager
def collecting(wanted: bool = True) -> Iterator[list[Note]]:
    """A context with the list of results noted in it, which stays empty if not `wanted`."""
    before, found = _Notes.current, []
    _Notes.current = found if wanted else None
    try:
        yield found
    finally:
        _Notes.current = before


def plain(value: object) -> Any:
    """A result as a value for JSON: numbers as bytes, anything else as its repr."""
    if isinstance(value, (np.ndarray, np.generic, int, float)) and not isinstance(value, bool):
        array = np.asarray(value)
        if array.dtype != object:
            return dict(dtype=array.dtype.name, shape=list(array.shape), bytes=base64.b64encode(array.tobytes()).decode())
    return repr(value)


def restored(value: object) -> Any:
    """The inverse of `plain`: an array, or a string.

    Raises ValueError, TypeError or KeyError for any other value.
    """
    if isinstance(value, str):
        return value
    return np.frombuffer(base64.b64decode(value["bytes"]), np.dtype(value["dtype"])).reshape(value["shape"])
