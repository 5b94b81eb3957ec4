"""The machine interface of a runner, besides the operations: copies in stream order, memory for them, and graphs.

`CudaMachine` is a GPU, with asynchronous copies and CUDA graphs. `HostMachine` is a CPU, on which every call is complete when it returns.
"""

import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.ops.batch import Array


class Done:
    """The event of work that is complete."""

    is_done = True

    def sync(self) -> None:
        """Returns at once."""


class HostMachine:
    """A CPU."""

    graph_memory_bytes = 0
    steps_ahead = 0  # a step is complete when its call returns, so planning the next one earlier gains nothing

    def use_in_this_thread(self) -> None:
        """Nothing to do."""

    def pinned(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Host memory for `read_later` and `write_later`."""
        return np.empty(shape, dtype)

    def write_later(self, array: np.ndarray, pinned: np.ndarray) -> Done:
        """Overwrite an array."""
        array[:] = pinned
        return Done()

    def read_later(self, array: np.ndarray, pinned: np.ndarray) -> Done:
        """Copy an array to host memory."""
        pinned[:] = array
        return Done()

    def write(self, array: np.ndarray, host: np.ndarray) -> None:
        """Overwrite an array."""
        array[:] = host


class CudaMachine:
    """A GPU, and the stream of its operations."""

    steps_ahead = 1  # steps that may be launched before the results of an earlier one are read

    def __init__(self, ops):
        from minllm.runtime.memory import GraphBlocks

        self.stream, self.memory, self.is_pinned = ops.core_stream, ops.memory, ops.pinned
        self.graph_memory = GraphBlocks()  # temporaries of all graphs, one of which runs at a time
        weakref.finalize(self, self.memory.release, self.graph_memory).atexit = False

    def use_in_this_thread(self) -> None:
        """Make the GPU's context current; required in every thread that uses it."""
        from minllm.runtime.device import current_device

        current_device()

    def pinned(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """A page-locked host array; a pageable one with the option pinned=False."""
        from minllm.runtime.memory import pinned_empty

        return pinned_empty(shape, dtype) if self.is_pinned else np.empty(shape, dtype)

    def write_later(self, array: Array, pinned: np.ndarray) -> Any:
        """Start overwriting a device array; earlier launches see its old contents.

        The host array may be reused after `sync()` of the returned event.
        """
        from minllm.runtime.stream import write_later

        return write_later(array, pinned, self.stream)

    def read_later(self, array: Array, pinned: np.ndarray) -> Any:
        """Start copying a device array to a page-locked one; the returned event has `sync()`."""
        from minllm.runtime.stream import read_later

        return read_later(array, pinned, self.stream)

    def write(self, array: Array, host: np.ndarray) -> None:
        """Overwrite a device array in stream order, and wait."""
        array.copy_from_host(host)

    @property
    def graph_memory_bytes(self) -> int:
        """Bytes that all graphs share."""
        return self.graph_memory.nbytes

    def capture(self, function) -> Any:
        """A graph of the launches of `function`, with `launch()` and `result`.

        All graphs share the memory of temporaries and results, so a result must be read before the next graph is launched.
        """
        from minllm.runtime.graph import CapturedGraph

        return CapturedGraph(function, self.stream, self.memory, self.graph_memory)


Machine = HostMachine | CudaMachine
