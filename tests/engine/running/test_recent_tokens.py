"""Where the newest tokens lie: any sequence of chunks and decode steps, followed on paper, position by position."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.cache.residual_window import window_room
from minllm.engine.running.batch_arrays import NewTokens
from minllm.engine.running.recent_tokens import recent_of_spans
from minllm.kernels.attention.residual_window.reference import ring_blocks, window_start
from minllm.kernels.kv.move_window import window_of_rows
from minllm.ops.batch import RecentTokens

LENGTHS = st.lists(st.integers(1, 150), min_size=1, max_size=6)


class Paper:
    """Rings and scratch memory that hold (sequence, position), -1 where nothing was written."""

    def __init__(self, window, sequences, scratch_blocks):
        self.window = window
        self.rings = np.full((sequences * ring_blocks(window), 32, 2), -1)
        self.scratch = np.full((scratch_blocks, 32, 2), -1)

    def write(self, memory, recent, rows):
        """Each (sequence, position) at its slot."""
        memory.reshape(-1, 2)[recent.slot_mapping] = rows

    def check(self, memory, recent, sequence, b, first, end):
        """The sequence's recent tokens are the positions from the window of the first new one to the last."""
        start = int(window_start(first, self.window))
        assert recent.context_lens[b] == end - start
        held = memory[recent.block_tables[b]].reshape(-1, 2)[: end - start]
        assert held.tolist() == [[sequence, position] for position in range(start, end)]

    def prefill(self, spans):
        recent = recent_of_spans(spans, self.window)
        for source, destination in recent.loads if recent.loads is not None else ():
            self.scratch[destination] = self.rings[source]
        rows = [(span.ring, position) for span in spans for position in range(span.start, span.start + len(span.token_ids))]
        self.write(self.scratch, recent, rows)
        for b, span in enumerate(spans):
            self.check(self.scratch, recent, span.ring, b, span.start, span.start + len(span.token_ids))
        for source, destination in recent.stores:
            self.rings[destination] = self.scratch[source]

    def decode(self, positions, rings):
        recent = RecentTokens(*window_of_rows(positions, positions + 1, rings, self.window), rings=rings)
        self.write(self.rings, recent, np.stack([rings, positions], axis=1))
        for b, (ring, position) in enumerate(zip(rings.tolist(), positions.tolist(), strict=True)):
            self.check(self.rings, recent, ring, b, position, position + 1)


@given(st.sampled_from([32, 64, 128]), LENGTHS, st.integers(1, 150))
@settings(max_examples=60, deadline=None)
def test_a_sequence_in_chunks_then_token_by_token(window, chunks, steps):
    paper, end = Paper(window, 3, window_room(window, 3, 150).scratch_blocks), 0
    for length in chunks:
        paper.prefill([NewTokens([0] * length, end, [0], ring=2)])
        end += length
    for position in range(end, end + steps):
        paper.decode(np.array([position]), np.array([2]))


@given(st.sampled_from([32, 96]), st.lists(LENGTHS, min_size=2, max_size=4), st.integers(40, 200))
@settings(max_examples=60, deadline=None)
def test_sequences_side_by_side(window, prompts, budget):
    """Prompts cut into steps of `budget` tokens as the engine cuts them; the scratch memory is as large as it says."""
    lengths = [sum(prompt) for prompt in prompts]
    paper = Paper(window, len(prompts), window_room(window, len(prompts), budget).scratch_blocks)
    spans, used = [], 0
    for ring, length in enumerate(lengths):
        start = 0
        while start < length:
            end = min(length, start + budget - used)
            spans.append(NewTokens([0] * (end - start), start, [0], ring))
            used, start = used + end - start, end
            if used == budget:
                paper.prefill(spans)
                spans, used = [], 0
    if spans:
        paper.prefill(spans)
    rings = np.arange(len(prompts))[::2]  # some have ended
    for step in range(70):
        paper.decode(np.array(lengths)[rings] + step, rings)


def test_rows_that_were_switched_off_write_nowhere():
    slots, lengths, _ = window_of_rows(np.array([100, 100]), np.array([101, 0]), np.array([0, 1]), 64)
    assert slots.tolist() == [4, -1] and lengths.tolist() == [101 - 32, 0]
