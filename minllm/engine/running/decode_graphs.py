"""Decode steps as replays of CUDA graphs, captured for some batch sizes.

A step of R sequences replays the graph of the next larger size, whose other rows are padding: they write nothing and are dropped. The
first kernel of a graph makes the batch's arrays from the slots of its rows, the last one stores the new tokens in them, so that a replay
needs nothing from the host unless the rows have changed.

    rows      1, 2, 4, and multiples of 8, because the flat GEMMs compute 8 rows at a time
    columns   block tables for contexts of 1k, 4k, 16k ... tokens, because kernels choose by the longest context possible
    kind      which kernels choose the tokens (SamplingKind)

One graph runs at a time, so all share the memory of their temporaries and results: that of the largest. Source of the buckets: vLLM's
"cudagraph capture sizes".
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from minllm.engine.requests.sequence import NO_SLOT
from minllm.engine.running.host_copies import Uploads
from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.ops.protocol import Batch, RecentTokens

SHORTEST_CONTEXT = 1024  # tokens
ROW_ARRAYS = ("token_ids", "positions", "slot_mapping", "context_lens")


class GraphKey(NamedTuple):
    """What a graph is captured for."""

    rows: int
    columns: int  # of block tables
    kind: SamplingKind


def capture_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes for which graphs are captured."""
    return sorted({1, 2, 4, *range(8, max_num_seqs, 8), max_num_seqs} & set(range(1, max_num_seqs + 1)))


def table_widths(columns: int, block_size: int) -> list[int]:
    """The numbers of columns of block tables for which graphs are captured; the last is `columns`."""
    widths = [-(-SHORTEST_CONTEXT // block_size)]
    while widths[-1] < columns:
        widths.append(4 * widths[-1])
    return sorted({min(width, columns) for width in widths})


def next_size(count: int, sizes: Iterable[int]) -> int:
    """The smallest of the ascending sizes that holds `count` rows."""
    # exercise: engine.next_size
    for size in sizes:
        if size >= count:
            return size
    raise ValueError(f"{count} rows are more than the largest size")
    # end exercise


class DecodeGraphs:
    """Graphs over arrays at fixed addresses. compute(slots, batch, kind) launches a step and returns (tokens, logits) on the device."""

    def __init__(
        self, ops, machine, max_num_seqs: int, columns: int, block_size: int, residual_window: int, compute: Callable
    ):  # fmt: skip
        """columns: of the widest block table. residual_window: that of the cache."""
        self.machine, self.block_size, self.compute = machine, block_size, compute
        self.sizes, self.widths = capture_sizes(max_num_seqs), table_widths(columns, block_size)
        self._graphs: dict[GraphKey, Any] = {}
        self._rows: list[int] = []  # what `_slots` begins with
        self._slots = ops.zeros((max_num_seqs,), np.int32)
        self._arrays = {name: ops.zeros((max_num_seqs,), np.int32) for name in ROW_ARRAYS}
        self._block_tables = ops.zeros((max_num_seqs * columns,), np.int32)
        self._counting = ops.array(np.arange(max_num_seqs + 1, dtype=np.int32))
        self._recent = None
        if residual_window:
            lists = [ops.zeros((max_num_seqs,), np.int32) for _ in range(2)]
            self._recent = (*lists, ops.zeros((max_num_seqs, ring_blocks(residual_window)), np.int32), self._slots)

    def key(self, num_rows: int, num_tokens: int, kind: SamplingKind) -> GraphKey:
        """The graph for a step of `num_rows` rows with contexts of up to `num_tokens`."""
        return GraphKey(next_size(num_rows, self.sizes), next_size(-(-num_tokens // self.block_size), self.widths), kind)

    def replay(self, key: GraphKey, slots: list[int], uploads: Uploads) -> Any:
        """Launch a step of these slots; returns its results on the device, valid until the next replay."""
        if key not in self._graphs:
            self.capture(key, uploads)
        self._set_rows(slots + [NO_SLOT] * (key.rows - len(slots)), uploads)
        graph = self._graphs[key]
        graph.launch()
        return graph.result

    def capture(self, key: GraphKey, uploads: Uploads) -> None:
        """Capture a graph. The step is launched once before, of padding alone, which compiles and allocates whatever is missing."""
        self._set_rows([NO_SLOT] * key.rows, uploads)
        batch = self.batch(key)
        step = functools.partial(self.compute, self._slots[: key.rows], batch, key.kind)
        step()
        self._graphs[key] = self.machine.capture(step)

    @property
    def num_captured(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def keys(self, kinds: Iterable[SamplingKind]) -> list[GraphKey]:
        """The graphs of short contexts, the largest first, because the others then fit into its memory."""
        return [GraphKey(rows, self.widths[0], kind) for kind in sorted(kinds, reverse=True) for rows in reversed(self.sizes)]

    def _set_rows(self, rows: list[int], uploads: Uploads) -> None:
        if self._rows != rows:
            uploads.write(self._slots[: len(rows)], np.array(rows, np.int32))
            self._rows = rows

    def batch(self, key: GraphKey) -> Batch:
        """The arrays of a graph."""
        rows = key.rows
        return Batch(
            **{name: array[:rows] for name, array in self._arrays.items()},
            query_start=self._counting[: rows + 1],
            block_tables=self._block_tables[: rows * key.columns].reshape(rows, key.columns),
            logits_rows=self._counting[:rows],
            num_tokens=rows,
            num_sequences=rows,
            max_query_len=1,
            max_context_len=key.columns * self.block_size,
            recent=None if self._recent is None else recent_rows(self._recent, rows),
            num_decodes=rows,
        )


def recent_rows(arrays: tuple, rows: int) -> RecentTokens:
    """The RecentTokens of the first rows of (slot_mapping, context_lens, block_tables, rings)."""
    slot_mapping, context_lens, block_tables, rings = (array[:rows] for array in arrays)
    return RecentTokens(slot_mapping, context_lens, block_tables, rings=rings)
