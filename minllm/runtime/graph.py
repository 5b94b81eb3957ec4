"""CUDA graphs: a sequence of launches recorded once and replayed with one call.

A launch costs the host 7 to 15 µs, a node of a graph the GPU about 1 µs; a decode step of 16 layers is some 130 launches. A graph keeps the
addresses and scalars of its launches, so what changes from replay to replay (token ids, positions, lengths) lives in arrays that
stay where they are, and the blocks that its temporaries used belong to it as long as it exists.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from minllm.runtime.memory import DeviceMemory


class CapturedGraph:
    """What `function` launches on `stream` (a cuda.core Stream), recorded without running it.

    Everything that `function` would compile, load or allocate anew should have been so before: call it once first.
    `result` is what it returned: arrays that every replay writes again.
    """

    def __init__(self, function: Callable[[], Any], stream: Any, memory: DeviceMemory):
        self.stream = stream
        builder = stream.create_graph_builder()
        with memory.capture(self):
            builder.begin_building("relaxed")
            try:
                self.result = function()
            except BaseException:
                with contextlib.suppress(Exception):  # a failed capture ends with an error too; the first one matters
                    builder.end_building()
                raise
            builder.end_building()
        self.graph = builder.complete()
        self.graph.upload(stream)

    def launch(self) -> None:
        """Replay, in the stream's order; returns at once."""
        self.graph.launch(self.stream)
