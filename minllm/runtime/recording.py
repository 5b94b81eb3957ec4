"""Launches noted down instead of carried out: what a step consists of, for those who count its kernels or time them one by one."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from minllm.runtime.kernel import Launch


class RecordedLaunch(NamedTuple):
    """A launch that can be carried out any number of times; it keeps its arrays alive."""

    launch: Launch
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.launch.kernel.__name__

    def __call__(self) -> None:
        self.launch(*self.arguments)


@contextlib.contextmanager
def recorded_launches() -> Iterator[list[RecordedLaunch]]:
    """Yields the list to which every launch on the GPU is added, until the end of the `with` block. None of them is carried out."""
    launches: list[RecordedLaunch] = []
    original = Launch.__call__
    Launch.__call__ = lambda launch, *arguments: launches.append(RecordedLaunch(launch, arguments))
    try:
        yield launches
    finally:
        Launch.__call__ = original
