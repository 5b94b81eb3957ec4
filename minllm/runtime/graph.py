"""CUDA graphs: a sequence of launches recorded once and replayed with one call.

A launch takes microseconds of host time, and a decode step has several launches per layer; `minllm bench step` measures the gain. A
graph keeps the addresses and scalars of its launches, so what changes between replays (token ids, positions, lengths) is in arrays with
fixed addresses, and the memory of its temporaries belongs to the graph as long as it exists.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from minllm.errors import CaptureError
from minllm.runtime import kernel
from minllm.runtime.memory import DeviceMemory, GraphBlocks


class CapturedGraph:
    """The launches of `function` on `stream` (a cuda.core Stream), recorded without executing them.

    Raises CaptureError if `function` loads a kernel or makes an array of zeros: call it once before the capture.
    `result` is its return value: arrays that every replay overwrites. shared: memory for several graphs of which one runs at a time; then
    `function` returns a tuple of arrays, which the replay of another graph overwrites too.
    """

    def __init__(self, function: Callable[[], Any], stream: Any, memory: DeviceMemory, shared: GraphBlocks | None = None):
        self.stream = stream
        builder = stream.create_graph_builder()
        with memory.capture(self, shared), loading_refused():
            builder.begin_building("relaxed")
            try:
                result = function()
                self.result = result if shared is None else tuple(array.without_owner() for array in result)
            except BaseException:
                with contextlib.suppress(Exception):  # ending a failed capture raises too; the first error matters
                    builder.end_building()
                raise
            builder.end_building()
        self.graph = builder.complete()
        self.graph.upload(stream)

    def launch(self) -> None:
        """Replay the graph in stream order; returns at once."""
        self.graph.launch(self.stream)


def is_capturing() -> bool:
    """Whether launches are being captured."""
    return refuse in kernel.compilation_listeners


def refuse(name: str) -> None:
    """A compilation listener for captures. Raises CaptureError that names the kernel."""
    raise CaptureError(f"{name} is not loaded, and a capture does not wait for a compiler: call the function once before")


@contextlib.contextmanager
def loading_refused() -> Iterator[None]:
    """Within this context a launch of a kernel that is not loaded raises CaptureError."""
    kernel.compilation_listeners.append(refuse)
    try:
        yield
    finally:
        kernel.compilation_listeners.remove(refuse)
