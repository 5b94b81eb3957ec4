"""What a check saw of a reader's functions, so that another process can judge it again.

`minllm check` runs a reader's file in a process of its own, and code in that process can say anything: it can write the report itself,
or replace the functions that compare. So its word is not taken. Every check notes the results that it compares; the process hands
them over as plain bytes; and the parent, in which no code of the file ever ran, runs the same checks on the package's own solution
and holds the results against the values that it expects itself (`check_process`). To pass, a file has to deliver right results. It can
deliver those of the package's own functions, which no comparison of results can tell.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Note:
    """A result, what was expected (None: exactly the solution's result), and the tolerance of `mismatch.differing`."""

    name: str
    got: Any
    expected: Any = None
    tolerance: float | None = None


class _Notes:
    """The list that is being filled, if any."""

    current: list[Note] | None = None


def note(name: str, got: Any, expected: Any = None, tolerance: float | None = None) -> None:
    """Keep a result, if somebody collects them."""
    if _Notes.current is not None:
        got = np.array(got) if isinstance(got, np.ndarray) else got  # the caller may write into it later
        _Notes.current.append(Note(name, got, expected, tolerance))


@contextmanager
def collecting(wanted: bool = True) -> Iterator[list[Note]]:
    """The results noted inside; none of them if not `wanted`."""
    before, found = _Notes.current, []
    _Notes.current = found if wanted else None
    try:
        yield found
    finally:
        _Notes.current = before


def plain(value: Any) -> Any:
    """A result as JSON holds it: numbers as bytes, anything else as its repr."""
    if isinstance(value, (np.ndarray, np.generic, int, float)) and not isinstance(value, bool):
        array = np.asarray(value)
        if array.dtype != object:
            return dict(dtype=array.dtype.name, shape=list(array.shape), bytes=base64.b64encode(array.tobytes()).decode())
    return repr(value)


def restored(value: Any) -> Any:
    """What `plain` made, as an array or a text. Raises ValueError, TypeError or KeyError for anything else."""
    if isinstance(value, str):
        return value
    return np.frombuffer(base64.b64decode(value["bytes"]), np.dtype(value["dtype"])).reshape(value["shape"])
