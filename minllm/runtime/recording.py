"""Record launches instead of executing them, to count or time kernels."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from minllm.runtime.kernel import Launch


class RecordedLaunch(NamedTuple):
    """A launch that can be executed any number of times; it keeps its arrays alive."""

    launch: Launch
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.launch.kernel.__name__

    def __call__(self) -> None:
        self.launch(*self.arguments)


@contextlib.contextmanager
def recorded_launches() -> Iterator[list[RecordedLaunch]]:
    """Within this context launches on the GPU are not executed, but appended to the list that it yields."""
    launches: list[RecordedLaunch] = []
    original = Launch.__call__
    Launch.__call__ = lambda launch, *arguments: launches.append(RecordedLaunch(launch, arguments))
    try:
        yield launches
    finally:
        Launch.__call__ = original
