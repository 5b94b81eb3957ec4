"""The runner: executes one Step on the model. It keeps no other state of sequences than their slots.

    slots of sequences that entered or grew are updated                     one upload, one launch
    forward over all tokens of the step, sample, advance                    decodes alone replay a CUDA graph on a GPU
    with structured outputs the tokens are chosen later                     the host fills masks while the forward is computed
    tokens come back through page-locked memory                             `PendingForward.wait` is the only wait

Nothing else here waits for the device, so on a GPU the host plans step n + 1 while step n is computed; step n + 1 reads the token that it
decodes from the slot in which step n stored it.
"""

import functools
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import KVCache
from minllm.cache.policy import CachePolicy
from minllm.engine.progress import Progress
from minllm.engine.requests.grammar import masks_of
from minllm.engine.requests.sequence import NO_SLOT, Sequence
from minllm.engine.running.batch_arrays import (
    BATCH_ARRAYS,
    NewTokens,
    behind_slots,
    build_batch,
    in_pieces,
    padded_arrays,
)  # fmt: skip
from minllm.engine.running.forward_result import LateForward, Pending, PendingForward
from minllm.engine.running.host_copies import PinnedMemory, Readback, Uploads
from minllm.engine.running.logits_processors import processed_logits
from minllm.engine.running.machine import HostMachine
from minllm.engine.running.slots import Slots
from minllm.engine.running.speculator import Speculator
from minllm.engine.running.step_graphs import GraphKey, StepGraphs
from minllm.engine.scheduling.step import Span, Step
from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.decoder import forward
from minllm.ops.batch import Array, Batch, RecentTokens


def masked_rows(rows: list[int], spans: list[Span]) -> list[tuple[int, Any, int]]:
    """(first row, grammar, number of drafts) of the sequences with a grammar that have not ended. rows: of those that get a token."""
    owners = [(one, span.length - 1 if span.decodes else 0) for span in spans for one in span.sampled]
    return [
        (row, one.grammar, num_drafts) for row, (one, num_drafts) in zip(rows, owners, strict=True)
        if one.grammar is not None and not one.is_finished
    ]  # fmt: skip


class ModelRunner:
    """Executes steps for sequences in up to `max_num_seqs` slots. uses_graphs: whether decode steps are replayed as CUDA graphs."""

    chooses_late = True  # the choice of tokens that grammars decide on is launched by LateForward.start

    def __init__(
        self, ops, model, cache: KVCache, policy: CachePolicy, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int,
        machine: Any = None, uses_graphs: bool = False, speculator: Callable[[Slots], Speculator] | None = None,
    ):  # fmt: skip
        """speculator: makes a Speculator for these slots; None if the engine does not speculate."""
        self.ops, self.model, self.cache, self.policy = ops, model, cache, policy
        self.machine = machine or HostMachine()
        columns = max(1, blocks_needed(max_model_len, cache.block_size))
        self.slots = Slots(ops, self.machine, policy, max_num_seqs, columns, model.config.vocab_size)
        self.speculator = None if speculator is None else speculator(self.slots)
        self._pinned = PinnedMemory(self.machine)
        self.uploads = Uploads(ops, self.machine, self._pinned)
        self._late: list[LateForward] = []  # forwards of the last step
        self._window, self._max_model_len, self._max_tokens = cache.shape.residual_window, max_model_len, max_num_batched_tokens
        self.graphs = None
        if uses_graphs:
            self.graphs = StepGraphs(
                ops, self.machine, max_num_seqs=max_num_seqs, max_tokens=max_num_batched_tokens, columns=columns,
                block_size=cache.block_size, residual_window=self._window, compute=self.compute,
                query_len=0 if self.speculator is None else self.speculator.query_len,
                pauses=self.speculator is not None and self.speculator.pauses,
            )  # fmt: skip

    @property
    def steps_ahead(self) -> int:
        """The number of steps that may be launched before the results of an earlier one are read."""
        return self.machine.steps_ahead

    @property
    def chooses_apart(self) -> bool:
        """Whether every choice of tokens is launched after all forwards of a step."""
        return False

    def use_in_this_thread(self) -> None:
        """Make the machine current in this thread."""
        self.machine.use_in_this_thread()

    def execute(self, step: Step) -> Many[Pending]:
        """Launch a step; the results of its forwards are in the order of `step.sampled`.

        The choice of an earlier step is launched before, because this step reads its tokens and writes over its arrays.
        """
        self._choose_late()
        if step.copies:
            self.cache.copy_blocks(self.ops, step.copies)
            if self.speculator is not None:
                self.speculator.copy_blocks(step.copies)
        windows = None if self.cache.shape.sliding is None else self.policy.windows
        if windows is not None:
            self.cache.place_windows(self.ops, windows, step.local_copies)
        if step.forks and self._window:
            self.cache.copy_rings(self.ops, step.forks)
        changes = self.slots.changes(step)
        if len(changes):
            self.ops.write_slots(self.slots.state, self.uploads.send({"pairs": changes})["pairs"])
        if self.speculator is not None:
            self.speculator.enter(step.entered)
            for spans in in_pieces(step.unseen, self._max_tokens):
                self.speculator.catch_up(self._sent(*self._batch(spans, [], []), [])[0])
        pending = self._launch_all(self.forwards(step), step.makes_drafts)
        if self._window:
            forks = [(span.sequence.slot, fork.slot) for span in step.spans for fork in span.sampled if fork is not span.sequence]
            if forks:
                self.cache.copy_rings(self.ops, forks)
        return pending

    def close(self) -> None:
        """Drop the graphs. Nothing can be executed afterwards."""
        self.graphs = None

    def graph_counts(self) -> dict[str, int]:
        """The number of captured graphs, and the bytes that they share."""
        if self.graphs is None:
            return {}
        return dict(num_graphs=self.graphs.num_captured, graph_memory_bytes=self.machine.graph_memory_bytes)

    def capture_graphs(self, kinds: Iterable[SamplingKind], progress: Progress | None = None) -> None:
        """Capture the graphs for these kinds that are needed before the first request (StepGraphs.keys)."""
        if self.graphs is None:
            return
        keys = [key for key in self.graphs.keys(kinds) if key not in self.graphs]
        for done, key in enumerate(keys, start=1):
            self.graphs.capture(key, self.uploads)
            if progress is not None:
                progress("Capturing decode steps", done, len(keys))

    def forwards(self, step: Step) -> list[list[Span]]:
        """The spans of each forward: all spans in one, unless the cache has a residual window.

        With a window, decodes have their own forward, because they work in the rings. Prompts work in scratch memory, with room for the
        window of one prompt that an earlier step has begun.
        """
        if not self._window:
            return [step.spans]
        decodes = [span for span in step.spans if span.decodes]
        forwards = [decodes] if decodes else []
        for span in step.spans[len(decodes) :]:
            if span.start or not forwards or forwards[-1] is decodes:
                forwards.append([])
            forwards[-1].append(span)
        return forwards

    def _launch_all(self, forwards: list[list[Span]], makes_drafts: bool) -> Many[Pending]:
        """Launch forwards, one after the other."""
        return [self._launch(spans, makes_drafts) for spans in forwards]

    def _launch(self, spans: list[Span], makes_drafts: bool) -> Pending:
        """Launch a forward, by replaying a graph if one is large enough and the host does not change or score its logits."""
        sampled = [sequence for span in spans for sequence in span.sampled]
        slots, rows = self._rows(spans, sampled)
        kind, masked = self.slots.kind(sampled), any(sequence.grammar is not None for sequence in sampled)
        processed = [(row, sequence) for row, sequence in zip(rows, sampled, strict=True) if sequence.logits_processors]
        num_decodes = sum(span.decodes for span in spans)
        scored = [span for span in spans[num_decodes:] if span.sequence.scores_prompt]
        chooses_apart = masked or self.chooses_apart
        key, graphs, of_graph = None, self.graphs, None if chooses_apart else kind  # None: a graph ends with the logits
        if graphs is not None and not (processed or scored or (self._window and num_decodes < len(spans))):
            key = self._graph_key(graphs, spans, num_decodes, len(sampled), of_graph, makes_drafts)
        if graphs is None or key is None:
            batch, slots = self._sent(*self._batch(spans, slots, scored), sampled)
            batch = replace(batch, makes_drafts=makes_drafts)
            results = self.compute(slots, batch, of_graph, processed)
        elif key.prompts or key.query_len > 1 or (key.query_len and self.speculator is not None and self.speculator.reads_room):
            batch, _ = self._batch(spans, slots, scored)
            room = self._room(sampled) if key.query_len else ()
            results = graphs.replay(key, padded_arrays(batch, slots, num_decodes, key, room), self.uploads)
            if not key.query_len:
                rows[num_decodes:] = range(key.decodes, key.decodes + len(sampled) - num_decodes)
        else:
            results = graphs.replay_decodes(key, slots, self.uploads)
        read = functools.partial(self._read, sampled=sampled, rows=rows, scored=scored)
        if not chooses_apart:
            return read(*results)
        (logits,) = results
        if graphs is not None and key is not None:
            slots, batch = graphs.batch(key)
        if not sampled:  # a choice of nothing would let the stages of a pipeline wait for the last one
            return read(slots, logits)
        if key is not None and self.chooses_apart:  # the next forward's graph writes over both
            slots, logits = self.ops.copied(slots), self.ops.copied(logits)
        late = LateForward(lambda: read(*self.choose(logits, slots, batch, kind, processed, masked_rows(rows, spans))))
        self._late.append(late)
        return late

    def _choose_late(self) -> None:
        """Launch the choices that are left."""
        while self._late:
            self._late.pop(0).start()

    def _rows(self, spans: list[Span], sampled: list[Sequence]) -> tuple[list[int], list[int]]:
        """(slot of each row that gets logits, row of each sampled sequence or with drafts the first row of its run)."""
        slots = [sequence.slot for sequence in sampled]
        if self.speculator is None:
            return slots, list(range(len(slots)))
        lengths = [span.length if span.decodes else 1 for span in spans for _ in span.sampled]
        starts = accumulate(lengths, initial=0)
        return [slot for slot, length in zip(slots, lengths, strict=True) for _ in range(length)], list(starts)[:-1]

    def _graph_key(
        self, graphs: StepGraphs, spans: list[Span], num_decodes: int, num_sampled: int, kind: SamplingKind | None, makes_drafts: bool
    ) -> GraphKey | None:  # fmt: skip
        """The graph for a step; None if none is large enough."""
        num_prompts = max(len(spans), num_sampled) - num_decodes
        num_tokens, context = sum(span.length for span in spans), max(span.start + span.length for span in spans)
        return graphs.key(num_decodes, num_prompts, num_tokens, context, kind, makes_drafts)

    def _batch(self, spans: list[Span], slots: list[int], scored: list[Span]) -> tuple[Batch, list[int]]:
        """The batch of a forward, and the slots of its sampled rows, on the host."""
        size = self.cache.block_size
        decodes, prompts = [span for span in spans if span.decodes], [span for span in spans if not span.decodes]
        batch: Batch | None = None
        if prompts:
            chunks = [self._chunk(span) for span in prompts]
            ends = np.cumsum([span.length for span in prompts]) - 1  # each span's last row
            rows = [row for span, row in zip(prompts, ends, strict=True) for _ in span.sampled]
            if not slots:
                rows, slots = [ends[-1]], [NO_SLOT]  # no array may be empty, so one row is computed and dropped
            rows += [end - back for span, end in zip(prompts, ends, strict=True) if span in scored for back in reversed(range(span.length))]
            batch = build_batch(chunks, rows, size, self._window)
        if decodes or batch is None:
            positions, lengths = [span.start for span in decodes], [span.length for span in decodes]
            batch = behind_slots(batch, positions, lengths, size, verifies=self.speculator is not None)
        return batch, slots

    def _sent(self, batch: Batch, slots: list[int], sampled: list[Sequence]) -> tuple[Batch, Any]:
        """A batch and its slots on the device."""
        arrays = {name: getattr(batch, name) for name in BATCH_ARRAYS} | {"slots": np.array(slots, np.int32)}
        if self.speculator is not None:
            arrays["room"] = np.array(self._room(sampled) or [0], np.int32)
        recent = {} if batch.recent is None else batch.recent.arrays()
        sent = self.uploads.send(arrays | {f"recent {name}": array for name, array in recent.items()})
        slots = sent.pop("slots")
        if batch.recent is not None:
            batch = replace(batch, recent=replace(batch.recent, **{name: sent.pop(f"recent {name}") for name in recent}))
        elif self._window:
            batch = replace(batch, recent=self.recent_rows(slots))
        return replace(batch, **sent), slots

    def _room(self, sampled: list[Sequence]) -> list[int]:
        """For each sequence the number of tokens for which it has blocks."""
        return [min(self.policy.room(sequence), self._max_model_len) for sequence in sampled]

    def _chunk(self, span: Span) -> NewTokens:
        end = span.start + span.length
        table = self.policy.table(span.sequence)[: blocks_needed(end, self.cache.block_size)]
        return NewTokens(span.sequence.token_ids(span.start, end), span.start, table, span.sequence.slot)

    def compute(self, slots: Array, batch: Batch, kind: SamplingKind | None, processed: Any = ()) -> tuple[Any, ...]:
        """Launch a forward, and sample the rows of `slots` [R]: (tokens [R], logits [R or more, vocab]) on the device.

        With a speculator, the other results of Speculator.choose follow, first the numbers of new tokens and of next drafts, [R] each.
        kind: None leaves the rows to a later `choose`, and returns the logits alone.
        """
        if self.speculator is not None:
            batch = self.speculator.on_tree(batch)
        logits = self.logits_of(slots, batch)
        return (logits,) if kind is None else self.choose(logits, slots, batch, kind, processed)

    def logits_of(self, slots: Array, batch: Batch) -> Any:
        """Launch a forward: logits [R or more, vocab]. The rows of sequences that decode are made from their slots."""
        state = self.slots.state
        if self.speculator is not None and batch.num_verifications and batch.speculates:
            self.speculator.load(slots, batch, self.cache.block_size)
        elif batch.num_decodes:
            pads = batch.num_decodes == batch.num_sequences
            self.ops.load_rows(slots[: batch.num_decodes], state, batch.decodes(), self.cache.block_size, self._window, pads)
        return forward(self.ops, self.model, batch, self.cache.layers)

    def choose(
        self, logits: Array, slots: Array, batch: Batch, kind: SamplingKind, processed: Any = (), masked: Any = ()
    ) -> tuple[Any, ...]:  # fmt: skip
        """Launch the choice of the next tokens, and advance the slots; returns the results of `compute`.

        processed: (row, sequence) of the sequences with logits processors. masked: as masked_rows returns it.
        """
        computed = [(logits[row], self._process(logits[row], sequence), sequence.scores_processed) for row, sequence in processed]
        num_sampled = slots.shape[0]
        sampled = logits if num_sampled == logits.shape[0] else logits[:num_sampled]
        if masked:
            sampled = self._masked(sampled, masked)
        if self.speculator is None or not batch.speculates:
            tokens, verified = self.ops.sample(sampled, self.slots.sampling(kind), slots), []
            self.ops.advance(tokens, slots, self.slots.state)
        else:
            tokens, *verified = self.speculator.choose(sampled, slots, batch, kind)
        for row, host, scores_processed in computed:
            if not scores_processed:
                self.machine.write(row, host)  # log-probabilities are those of the model
        return tokens, logits, *verified

    def recent_rows(self, slots: Array) -> RecentTokens:
        """Arrays for `Ops.load_rows` to fill in."""
        rows, ring = slots.shape[0], ring_blocks(self._window)
        slot_mapping, context_lens = (self.ops.empty((rows,), np.int32) for _ in range(2))
        return RecentTokens(slot_mapping, context_lens, self.ops.empty((rows, ring), np.int32), rings=slots)

    def _process(self, logits: Array, sequence: Sequence) -> np.ndarray:
        """Apply a sequence's logits processors on the host, while the device waits. Returns the unprocessed logits."""
        computed = self.ops.to_host(logits).copy()
        host = computed
        with sequence.at_fault():
            host = processed_logits(computed, sequence)
        self.machine.write(logits, host)
        return computed

    def _masked(self, logits: Array, masked: list[tuple[int, Any, int]]) -> Any:
        """The logits without the tokens that grammars exclude. The host fills their masks while the device computes the logits."""
        indices = np.full(logits.shape[0], -1, np.int32)
        rows = [row for first, _, num_drafts in masked for row in range(first, first + 1 + num_drafts)]
        indices[rows] = range(len(rows))
        sent = self.uploads.send(dict(indices=indices, masks=masks_of([(grammar, num_drafts) for _, grammar, num_drafts in masked])))
        return self.ops.mask_logits(logits, sent["indices"], sent["masks"])

    def _read(self, tokens: Array, logits: Array, *verified: Any, sampled: list[Sequence], rows: list[int], scored: list[Span]) -> Pending:
        """Start copying the results of a forward to the host. rows: as in PendingForward."""
        count, arrays = tokens.shape[0], [tokens, *verified]
        drafts = False
        if self.speculator is not None and any(sequence.grammar is not None for sequence in sampled):
            drafts = True
            arrays.append(self.speculator.drafts.drafts)
        wanted = [sequence.params.logprobs or 0 for sequence in sampled if sequence.needs_logprobs]
        if wanted:
            arrays += self.ops.log_probabilities(logits[:count], tokens, max(wanted))
        if scored:
            top = max(span.sequence.params.prompt_logprobs or 0 for span in scored)
            targets = np.concatenate([self._next_tokens(span) for span in scored])
            sent = self.uploads.send({"targets": targets})["targets"]
            arrays += self.ops.log_probabilities(logits[count:], sent, top)
        return PendingForward(Readback(self.machine, self._pinned, arrays), sampled, rows, bool(wanted), scored, len(verified), drafts)

    def _next_tokens(self, span: Span) -> np.ndarray:
        """The token after each token of a span, int32 [length]; 0 if it is not known yet."""
        end = span.start + span.length
        found = span.sequence.token_ids(span.start + 1, min(end + 1, span.sequence.num_tokens))
        return np.array(found + [0] * (span.length - len(found)), np.int32)
