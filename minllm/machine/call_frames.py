"""Room for the frames of nested calls.

CPython keeps the frames of Python functions in chunks of 16 KB. At a depth where a chunk ends, each call allocates the next chunk from the
system and each return gives it back, so a loop there takes up to ten times as long. A function that is called with room gets a chunk which
ends a thousand calls further down.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
SLOTS = 2**17  # a slot has 8 bytes; CPython rounds the chunk up to a power of two, and the half that the frame leaves is the room


def with_room(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator of a function below which calls nest deeply, such as a compiler. A call costs some microseconds more."""

    @functools.wraps(function)
    def call(*arguments: Given.args, **options: Given.kwargs) -> Result:
        return in_large_frame(function, arguments, options)

    return call


def in_large_frame(function, arguments, options):
    """Call a function from a frame that needs a chunk of its own."""
    return function(*arguments, **options)


in_large_frame.__code__ = in_large_frame.__code__.replace(co_stacksize=SLOTS)
