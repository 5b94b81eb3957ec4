"""The model runner of a GPU: prompts kernel by kernel, decode steps as replays of a CUDA graph, one step ahead of the host.

While the host reads the tokens of step n, decides which sequences have ended and turns ids into text, the GPU already computes step n + 1.
A sequence that ends is therefore computed at most one step too far; its surplus token is dropped.
"""

from collections import OrderedDict
from collections.abc import Sequence as Many

import numpy as np

from minllm.cache.kv_cache import KVCache
from minllm.engine.batch_arrays import decode_batch
from minllm.engine.decode_graph import DecodeGraph, GraphMachine, graph_key
from minllm.engine.model_runner import ModelRunner
from minllm.engine.sequence import Sequence
from minllm.kernels.sampling.log_probabilities import LogProbabilities, log_probabilities_reference

GRAPHS_KEPT = 8  # number of batch shapes whose graphs are kept
CONTEXT_STEP = 256  # tokens; block tables are widened to multiples of this, so that batches share graphs


class PendingStep:
    """A step whose results are being copied from the GPU; reading it waits. Same interface as model_runner.Step."""

    def __init__(self, event, reader: "Reader", top: int | None, rows: np.ndarray, places: np.ndarray, total: int):
        """rows: indices of the computed rows that count; places: the sequence of each, among the `total` of the batch."""
        self._event, self._tokens, self._logits, self._top = event, reader.tokens, reader.logits, top
        self._rows, self._places, self._total = rows, places, total
        self._logprobs: LogProbabilities | None = None

    def token_ids(self) -> np.ndarray:
        """The new tokens, int32 [total]; -1 for retired sequences."""
        self.wait()
        return self._tokens

    def log_probabilities(self) -> LogProbabilities | None:
        """Log-probabilities of the new and the likeliest tokens, `total` rows; None if no sequence of the batch requested them."""
        self.wait()
        return self._logprobs

    def wait(self) -> None:
        """Wait for the step and copy its results out of the shared host arrays."""
        if self._event is None:
            return
        self._event.sync()
        self._event = None
        tokens = self._tokens[self._rows]
        if self._logits is not None:
            found = log_probabilities_reference(self._logits[self._rows], tokens, self._top)
            self._logprobs = LogProbabilities(*(self._spread(array, 0) for array in found))
        self._tokens, self._logits = self._spread(tokens, -1), None

    def _spread(self, array: np.ndarray, missing: int) -> np.ndarray:
        whole = np.full((self._total, *array.shape[1:]), missing, array.dtype)
        whole[self._places] = array
        return whole


class CudaGraphRunner(ModelRunner):
    """Computes static batches like ModelRunner, one step ahead of the host. Tests replace `machine`."""

    steps_ahead = 1

    def __init__(self, ops, model, cache: KVCache, max_num_batched_tokens: int, max_model_len: int, machine=None):
        super().__init__(ops, model, cache, max_num_batched_tokens)
        self.max_model_len = max_model_len
        self._machine = machine or GraphMachine(ops)
        self._graphs: OrderedDict[tuple, DecodeGraph] = OrderedDict()
        self._decode: DecodeGraph | None = None

    def start(self, sequences: Many[Sequence]) -> None:
        """Take a batch; see ModelRunner."""
        super().start(sequences)
        self._block_tables = self._widened(self._block_tables)
        self._decode = None

    def decode_step(self) -> PendingStep:
        """Launch the next step of every sequence that is not retired; returns at once."""
        if self._decode is None:
            self._decode = self._begin_decoding()
        tokens, logits = self._decode.step()
        reader = self._decode.readers[0]
        self._decode.readers.rotate(-1)
        if reader.pending is not None:
            reader.pending.wait()  # its host arrays are about to be reused
        if reader.logits is not None:
            self._machine.read_later(logits, reader.logits)
        event = self._machine.read_later(tokens, reader.tokens)  # the last copy: its event covers both
        rows = np.searchsorted(self._decode_rows, self._active)
        reader.pending = PendingStep(event, reader, self._top, rows=rows, places=self._active, total=len(self._sequences))
        return reader.pending

    def retire(self, rows: Many[int]) -> None:
        """Stop computing the sequences with these indices into the batch, from the step after the one in flight."""
        if self._decode is None:
            super().retire(rows)
            return
        for row in np.searchsorted(self._decode_rows, np.intersect1d(self._active, rows)):
            self._decode.switch_off(int(row))
        self._active = self._active[~np.isin(self._active, rows)]

    def block_tables_changed(self, rows: Many[int]) -> None:
        """See ModelRunner."""
        super().block_tables_changed(rows)
        if self._decode is not None:
            self._decode.update_block_tables(self._block_tables[self._decode_rows])

    def finish(self) -> None:
        """Drop the batch, whether it is complete or not; graphs are kept."""
        super().finish()
        self._decode = None

    def _begin_decoding(self) -> DecodeGraph:
        """The graph for the sequences that still run, loaded with their state after the prefill."""
        rows = self._decode_rows = self._active
        tables = self._block_tables[rows]
        window = self.cache.shape.residual_window
        batch = decode_batch(
            self._token_ids[rows], self._positions[rows], tables, block_size=self.cache.block_size, rings=rows, residual_window=window
        )
        batch.max_context_len = tables.shape[1] * self.cache.block_size
        reserved = [self._sequences[row].num_reserved_tokens for row in rows]
        limits = np.minimum(reserved, self.max_model_len).astype(np.int32)
        key = graph_key(batch, self._sampling, self._top is not None)
        graph = self._graphs.pop(key, None)
        if graph is None:
            graph = DecodeGraph(
                self.ops, self.model, self.cache, batch=batch, sampling=self._sampling, limits=limits, machine=self._machine
            )
            shape = len(rows), self.model.config.vocab_size, self._top is not None
            graph.readers.extend(Reader(self._machine, *shape) for _ in range(self.steps_ahead + 2))
        else:
            graph.load(batch, self._sampling, limits)
        self._graphs[key] = graph
        while len(self._graphs) > GRAPHS_KEPT:
            self._graphs.popitem(last=False)
        return graph

    def _widened(self, tables: np.ndarray) -> np.ndarray:
        """Block tables padded to a multiple of CONTEXT_STEP tokens."""
        step = max(1, CONTEXT_STEP // self.cache.block_size)
        width = -(-tables.shape[1] // step) * step
        return np.pad(tables, ((0, 0), (0, width - tables.shape[1])))


class Reader:
    """Page-locked host arrays that one step at a time is copied into, and the step that uses them."""

    def __init__(self, machine, rows: int, vocab: int, reads_logits: bool):
        self.tokens = machine.pinned((rows,), np.int32)
        self.logits = machine.pinned((rows, vocab), np.float32) if reads_logits else None
        self.pending: PendingStep | None = None
