"""nano's scheduler around a forward that only pretends.

The cache holds one number per token: a hash of it and of all tokens before it. So a block that another sequence computed, or that was never
written, shows at once.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import OutOfMemoryError
from minllm.nano.block_pool import BlockPool
from minllm.nano.forward import make_batch
from minllm.nano.scheduler import Scheduler, sampled
from minllm.nano.sequence import SamplingParams, Sequence
from tests.engine.scheduling.scripted_runner import chain

BLOCK_SIZE, EOS, MAX_MODEL_LEN, MOST_STEPS = 4, 99, 30, 2000


def small_engine(blocks=8, seqs=3, budget=7):
    """A scheduler, and the cells of its cache."""
    pool = BlockPool(blocks, BLOCK_SIZE)
    return Scheduler(pool, seqs, budget, frozenset([EOS]), MAX_MODEL_LEN), np.zeros(blocks * BLOCK_SIZE, np.int64)


def step(scheduler, cells, script):
    """One step: what a forward would read and write is checked against the tokens. script: {sequence: all its tokens}."""
    planned = scheduler.schedule()
    assert sum(count for _, count in planned) <= scheduler.max_num_batched_tokens and len(scheduler.running) <= scheduler.max_num_seqs
    batch = make_batch(planned, BLOCK_SIZE)
    for index, (sequence, _) in enumerate(planned):
        known = chain(sequence.token_ids)
        rows = slice(batch.query_start[index], batch.query_start[index + 1])
        np.testing.assert_array_equal(batch.token_ids[rows], np.array(sequence.token_ids)[batch.positions[rows]])
        cells[batch.slot_mapping[rows]] = known[batch.positions[rows]]
        table, length = batch.block_tables[index], batch.context_lens[index]
        context = cells[np.repeat(table * BLOCK_SIZE, BLOCK_SIZE) + np.tile(np.arange(BLOCK_SIZE), len(table))]
        np.testing.assert_array_equal(context[:length], known[:length])
    assert batch.last_rows.tolist() == [batch.query_start[i + 1] - 1 for i, (s, _) in enumerate(planned) if s in sampled(planned)]
    return scheduler.take(planned, [script[sequence][len(sequence.output_token_ids)] for sequence in sampled(planned)])


def check_books(scheduler):
    """Each block is held as often as it stands in a table, and is free if it is not held; nothing waits with blocks."""
    pool, held = scheduler.pool, [block for sequence in scheduler.running for block in sequence.block_table]
    assert pool.holders == [held.count(block) for block in range(len(pool.holders))]
    assert sorted(pool._free) == [block for block, count in enumerate(pool.holders) if not count]
    assert not any(sequence.block_table or sequence.num_computed_tokens for sequence in scheduler.waiting)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 13), st.integers(0, 12), st.integers(1, 9), st.booleans(), st.sampled_from([0, 0, 1, 4]), st.integers(0, 12)),
    min_size=1, max_size=8,
)  # fmt: skip
ENGINES = st.fixed_dictionaries(dict(blocks=st.integers(6, 12), seqs=st.integers(1, 4), budget=st.sampled_from([4, 5, 7, 64])))


@given(requests=REQUESTS, engine=ENGINES)
def test_every_request_gets_its_tokens_and_everything_comes_back(requests, engine):
    """A request: prompt, tokens before its end of text, max_tokens, whether its prompt begins as others do, arrival, and when it leaves."""
    (scheduler, cells), script = small_engine(**engine), {}
    arriving = []
    for number, (prompt, tokens, max_tokens, shares, arrives, leaves) in enumerate(requests):
        first = 5 if shares else 1000 + 50 * number
        sequence = Sequence(list(range(first, first + prompt)), SamplingParams(max_tokens=max_tokens))
        script[sequence] = [*range(200 + 20 * number, 200 + 20 * number + tokens), EOS]
        arriving.append((arrives, leaves, sequence))
    for number in range(MOST_STEPS):
        for arrives, leaves, sequence in arriving:
            if arrives == number:
                scheduler.add(sequence)
            if number == arrives + leaves + 9 and not sequence.finish_reason:
                scheduler.finish(sequence, "abort")
        oldest = scheduler.running[:1]
        if scheduler.waiting or scheduler.running:
            step(scheduler, cells, script)
        check_books(scheduler)
        assert all(sequence in scheduler.running or sequence.finish_reason for sequence in oldest), "the oldest is never preempted"
        if all(sequence.finish_reason for *_, sequence in arriving):
            break
    assert scheduler.pool.num_free == engine["blocks"] and not scheduler.running and not scheduler.waiting
    for *_, sequence in arriving:
        expected, found = script[sequence][: sequence.params.max_tokens], sequence.output_token_ids
        assert found == expected[: len(found)] if sequence.finish_reason == "abort" else found == expected
        assert sequence.finish_reason in ("abort", "stop" if EOS in found else "length")


@settings(max_examples=50, deadline=None)
@given(requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=8), engine=ENGINES)
def test_who_came_first_gets_the_first_token_first(requests, engine):
    (scheduler, cells), script, order = small_engine(**engine), {}, []
    for number, (prompt, tokens) in enumerate(requests):
        sequence = Sequence([1000 * number + i for i in range(prompt)], SamplingParams(max_tokens=tokens))
        script[sequence] = [5] * tokens
        scheduler.add(sequence)
    while scheduler.waiting or scheduler.running:
        order += [sequence for sequence in step(scheduler, cells, script) if sequence not in order]
    assert order == list(script)


def test_prompts_that_begin_alike_share_blocks():
    scheduler, cells = small_engine()
    first, second = (Sequence([*range(9), last], SamplingParams(max_tokens=1)) for last in (50, 60))
    script = {first: [5], second: [6]}
    scheduler.add(first)
    while not first.finish_reason:
        step(scheduler, cells, script)
    scheduler.add(second)
    planned = scheduler.schedule()
    assert planned == [(second, 2)], "two blocks of four tokens are found"


def test_a_request_that_can_never_fit_is_named():
    scheduler, _ = small_engine(blocks=2)
    scheduler.add(Sequence([1] * 4, SamplingParams(max_tokens=4)))
    with pytest.raises(OutOfMemoryError, match="prompt of 5 tokens may grow to 9, which take 3 blocks of 4 tokens, and there are 2"):
        scheduler.add(Sequence([1] * 5, SamplingParams(max_tokens=4)))


def test_leaving_early_frees_everything():
    scheduler, cells = small_engine()
    sequences = [Sequence([7, 8, 9], SamplingParams(max_tokens=20)) for _ in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    step(scheduler, cells, dict.fromkeys(sequences, [5] * 20))
    for sequence in sequences:
        scheduler.finish(sequence, "abort")
    assert scheduler.pool.num_free == 8 and not scheduler.running and not scheduler.waiting
