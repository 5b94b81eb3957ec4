"""One decode step for a batch of fixed shape, captured once as a CUDA graph and replayed.

A step is forward, sample and advance: its last kernels overwrite this step's token ids, positions, slots, lengths and random counters
with the next step's, so a replay needs nothing from the host. Tokens come back through page-locked memory and an event.
"""

from collections import deque
from typing import Any

import numpy as np

from minllm.engine.batch_arrays import to_backend
from minllm.kernels.kv.move_window import move_window
from minllm.kernels.sampling.advance import advance
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.models.decoder import forward
from minllm.ops.protocol import Batch

TABLE_COPIES = 3  # more than the number of steps in flight
BATCH_ARRAYS = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "logits_rows")


class GraphMachine:
    """GPU services that a replayed step needs besides its operations."""

    def __init__(self, ops):
        self.stream, self.memory, self.is_pinned = ops.core_stream, ops.memory, ops.pinned

    def capture(self, function) -> Any:
        """A graph of what `function` launches, with `launch()` and `result`."""
        from minllm.runtime.graph import CapturedGraph

        return CapturedGraph(function, self.stream, self.memory)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A page-locked host array, or a pageable one if the engine measures those."""
        from minllm.runtime.memory import pinned_empty

        return pinned_empty(shape, dtype) if self.is_pinned else np.empty(shape, dtype)

    def read_later(self, array, pinned: np.ndarray) -> Any:
        """Start copying a device array to a page-locked one; the returned event has `sync()`."""
        from minllm.runtime.stream import read_later

        return read_later(array, pinned, self.stream)

    def write(self, array, host: np.ndarray) -> None:
        """Overwrite a device array, in stream order with the steps launched before and after."""
        array.copy_from_host(host)

    def write_later(self, array, pinned: np.ndarray) -> Any:
        """Start overwriting a device array with a page-locked one, without waiting for earlier steps; see `read_later`."""
        from minllm.runtime.stream import write_later

        return write_later(array, pinned, self.stream)

    def clear_row(self, array, row: int) -> None:
        """Set array[row] of an int32 device array to 0 after the steps launched so far."""
        from minllm.runtime.stream import fill_words_later

        fill_words_later(array[row : row + 1], 0, self.stream)


def graph_key(batch: Batch, sampling: SamplingTensors, reads_logits: bool) -> tuple:
    """A key that is equal for batches that one graph can serve: the shapes of all arrays, and which kernels the sampler launches."""
    # exercise: engine.graph_key
    shapes = tuple(getattr(batch, name).shape for name in BATCH_ARRAYS)
    return shapes, tuple((name, array.shape) for name, array in sampling.arrays().items()), sampling.all_greedy, reads_logits
    # end exercise


class DecodeGraph:
    """The arrays of a decode batch, at fixed addresses, and the graph of a step over them.

    The first step is launched kernel by kernel, which compiles and allocates whatever is missing; the second is captured.
    """

    def __init__(self, ops, model, cache, batch: Batch, sampling: SamplingTensors, limits: np.ndarray, machine):
        self.ops, self.model, self.cache, self.machine = ops, model, cache, machine
        self.batch = to_backend(batch, ops)
        self.sampling = sampling.to(ops.array)
        self.limits = ops.array(limits)  # int32 [B]: one past the last position that a row may reach
        self.slots = ops.array(np.arange(batch.num_sequences, dtype=np.int32))  # row r works for slot r
        self.is_warm, self.graph = False, None
        self.readers: deque = deque()  # host arrays that the steps' results are copied into, in turn; owned by the runner
        self._table_copies: deque = deque()  # (page-locked block tables, event of their copy to the device), in turn

    def load(self, batch: Batch, sampling: SamplingTensors, limits: np.ndarray) -> None:
        """Start another batch of the same graph_key."""
        for name in BATCH_ARRAYS:
            self.machine.write(getattr(self.batch, name), getattr(batch, name))
        for name, array in batch.recent.arrays().items() if batch.recent else ():
            self.machine.write(getattr(self.batch.recent, name), array)
        for name, array in sampling.arrays().items():
            self.machine.write(getattr(self.sampling, name), array)
        self.machine.write(self.limits, limits)

    def update_block_tables(self, block_tables: np.ndarray) -> None:
        """Set the block tables for the steps launched from now on. Their address is unchanged, so the graph stays valid."""
        if len(self._table_copies) < TABLE_COPIES:
            pinned = self.machine.pinned(block_tables.shape, np.int32)
        else:
            pinned, event = self._table_copies.popleft()
            event.sync()  # started some steps ago
        pinned[:] = block_tables
        self._table_copies.append((pinned, self.machine.write_later(self.batch.block_tables, pinned)))

    def step(self) -> tuple[Any, Any]:
        """Launch the next step: (token ids int32 [B], logits float32 [B, vocab]) on the device, overwritten by the following step."""
        if not self.is_warm:
            self.is_warm = True
            return self.launch_kernels()
        if self.graph is None:
            self.graph = self.machine.capture(self.launch_kernels)
        self.graph.launch()
        return self.graph.result

    def switch_off(self, row: int) -> None:
        """Stop computing row `row`, starting with the launched step after the next: it has no next position then."""
        self.machine.clear_row(self.limits, row)

    def launch_kernels(self) -> tuple[Any, Any]:
        """One step, kernel by kernel: forward, sample, advance; returns what `step` returns."""
        batch = self.batch
        logits = forward(self.ops, self.model, batch, self.cache.layers)  # [B, vocab]
        tokens = self.ops.sample(logits, self.sampling, self.slots)  # [B]
        moved = (batch.token_ids, batch.positions, batch.slot_mapping, batch.context_lens)
        advance(
            tokens, *moved, block_tables=batch.block_tables, limits=self.limits, sampling=self.sampling, block_size=self.cache.block_size,
            stream=self.ops.stream,
        )  # fmt: skip
        if batch.recent:
            recent, window = batch.recent, self.cache.shape.residual_window
            arrays = (recent.rings, recent.slot_mapping, recent.context_lens, recent.block_tables)
            move_window(batch.positions, batch.context_lens, *arrays, window, self.ops.stream)
        return tokens, logits
