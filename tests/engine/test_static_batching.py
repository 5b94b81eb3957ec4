"""The loop around a runner that only pretends: who runs when, what is launched ahead, and that blocks always come back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minllm.engine.model_runner import Step
from minllm.engine.static_batching import StaticBatching

from minllm.cache.paged import PagedPolicy
from minllm.engine.requests.sequence import Sequence
from minllm.engine.sampling_params import SamplingParams
from minllm.errors import EngineBusyError, OutOfMemoryError

BLOCK_SIZE = 4
EOS = 99


class NoText:
    """A decoder for tests that look at tokens only."""

    def push(self, token_id):
        return ""

    def finish(self):
        return ""


class ScriptedRunner:
    """Gives each sequence its scripted tokens (its request id says which), and checks that it is used as a runner may be."""

    def __init__(self, scripts, steps_ahead=0, fails_at=None):
        self.scripts = scripts
        self.steps_ahead = steps_ahead
        self.fails_at = fails_at
        self.batches = []  # request ids of each batch
        self.most_unread = 0
        self.computed = {}  # request id -> tokens computed for it

    def start(self, sequences):
        self.sequences = sequences
        self.retired, self.off = set(), set()
        self.step = 0
        self.unread = 0
        self.batches.append([s.request_id for s in sequences])
        self.tables = [list(s.block_table) for s in sequences]
        self._no_block_is_shared()

    def prefill(self):
        return self._launch()

    def _no_block_is_shared(self):
        blocks = [block for table in self.tables for block in table]
        assert len(blocks) == len(set(blocks)), "two sequences write to one block"

    def block_tables_changed(self, rows):
        for row in rows:
            assert self.tables[row] != self.sequences[row].block_table
            self.tables[row] = list(self.sequences[row].block_table)
        self._no_block_is_shared()

    def decode_step(self):
        self.step += 1
        return self._launch()

    def _launch(self):
        if self.step == self.fails_at:
            raise RuntimeError("the device fell over")
        self.unread += 1
        self.most_unread = max(self.most_unread, self.unread)
        assert self.unread <= self.steps_ahead + 1
        tokens = np.full(len(self.sequences), -1, np.int32)
        for row, sequence in enumerate(self.sequences):
            if row not in self.retired:
                script = self.scripts[sequence.request_id]
                tokens[row] = script[self.step] if self.step < len(script) else 0
                self.computed[sequence.request_id] = self.step + 1
                written = len(sequence.prompt_token_ids) + self.step  # tokens whose keys are in the cache after this step
                assert written <= len(self.tables[row]) * BLOCK_SIZE, "written beyond its blocks"
            elif row not in self.off:  # switched off too late for this step, whose token is dropped
                written = len(sequence.prompt_token_ids) + self.step
                assert written <= len(self.tables[row]) * BLOCK_SIZE or written > sequence.num_reserved_tokens, "written beyond its blocks"
                self.off.add(row)
        runner = self

        class Handle(Step):
            def token_ids(self):
                runner.unread -= 1
                return self.tokens

        return Handle(tokens, None)

    def retire(self, rows):
        assert not self.retired & set(rows)
        self.retired |= set(rows)

    def finish(self):
        self.sequences = None


def sequence(name, prompt_length, max_tokens):
    return Sequence(name, None, [1] * prompt_length, SamplingParams(max_tokens=max_tokens, seed=0), max_tokens, frozenset([EOS]), NoText())


REQUEST = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12))  # prompt, max_tokens, tokens before EOS


@settings(max_examples=200, deadline=None)
@given(requests=st.lists(REQUEST, min_size=1, max_size=8), blocks=st.integers(5, 12), seats=st.integers(1, 4), ahead=st.integers(0, 1))
def test_every_request_gets_its_tokens_and_every_block_comes_back(requests, blocks, seats, ahead):
    scripts = {str(i): [10 + i] * before_eos + [EOS] for i, (_, _, before_eos) in enumerate(requests)}
    sequences = [sequence(str(i), prompt_length, max_tokens) for i, (prompt_length, max_tokens, _) in enumerate(requests)]
    policy, runner = PagedPolicy(blocks, BLOCK_SIZE), ScriptedRunner(scripts, ahead)
    batching = StaticBatching(runner, policy, seats, tokenizer=None)
    for moved in batching.run(sequences):
        policy.check()
        assert moved and policy.usage().allocated > 0
        assert len(moved) <= seats
    assert policy.usage().allocated == 0
    assert [name for batch in runner.batches for name in batch] == list(scripts), "in order, each once"
    for s, (_, max_tokens, _) in zip(sequences, requests, strict=True):
        assert s.output_token_ids == scripts[s.request_id][:max_tokens]
        assert s.finish_reason == ("stop" if EOS in s.output_token_ids else "length")
        assert s.block_table == []
        assert runner.computed[s.request_id] <= len(s.output_token_ids) + ahead


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_steps_are_launched_before_the_ones_before_are_read(ahead):
    runner = ScriptedRunner({"a": [1] * 20}, ahead)
    steps = StaticBatching(runner, PagedPolicy(12, BLOCK_SIZE), 4, tokenizer=None).run([sequence("a", 1, 12)])
    for count, _ in enumerate(steps, 1):
        assert runner.computed["a"] == min(12, count + ahead)
    assert count == 12 and runner.most_unread == ahead + 1


@pytest.mark.parametrize("fails_at", [0, 1, 3])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_failing_device_leaks_nothing(fails_at, ahead):
    policy = PagedPolicy(12, BLOCK_SIZE)
    runner = ScriptedRunner({"a": [1] * 9, "b": [2] * 9}, ahead, fails_at)
    batching = StaticBatching(runner, policy, 4, tokenizer=None)
    with pytest.raises(RuntimeError, match="fell over"):
        list(batching.run([sequence("a", 5, 8), sequence("b", 2, 8)]))
    assert policy.usage().allocated == 0 and runner.sequences is None
    runner.fails_at = None
    assert len(list(batching.run([sequence("a", 5, 8)]))) == 8, "and the next request runs"


def test_leaving_early_frees_everything():
    policy = PagedPolicy(12, BLOCK_SIZE)
    batching = StaticBatching(ScriptedRunner({"a": [1] * 9, "b": [2] * 9}), policy, 4, tokenizer=None)
    steps = batching.run([sequence("a", 5, 8)])
    next(steps)
    usage = policy.usage()
    assert (usage.allocated, usage.promised) == (2 * BLOCK_SIZE, 2 * BLOCK_SIZE), "two blocks for now, and as many to come"
    with pytest.raises(EngineBusyError, match="close"):
        next(batching.run([sequence("b", 2, 2)]))
    assert policy.usage() == usage, "the second one took nothing, and the first one still runs"
    next(steps)
    steps.close()
    assert policy.usage().allocated == 0
    assert len(list(batching.run([sequence("b", 2, 2)]))) == 2


def test_a_request_that_can_never_fit_is_named():
    batching = StaticBatching(ScriptedRunner({}), PagedPolicy(3, BLOCK_SIZE), 4, tokenizer=None)
    batching.check_fits(sequence("a", 6, 6))
    with pytest.raises(OutOfMemoryError, match="7 tokens and max_tokens=6 need room for 13 tokens, .* has room for 12"):
        batching.check_fits(sequence("a", 7, 6))


def test_blocks_held_elsewhere_are_an_error_not_a_hang():
    policy = PagedPolicy(4, BLOCK_SIZE)
    policy.reserve("scoring", [1], 2 * BLOCK_SIZE - 1)
    batching = StaticBatching(ScriptedRunner({"a": [1] * 9}), policy, 4, tokenizer=None)
    with pytest.raises(OutOfMemoryError, match="3 more KV cache blocks .* 2 of 4 are free and unpromised"):
        list(batching.run([sequence("a", 6, 6)]))
    assert policy.tokens("scoring") == [1] and policy.usage().allocated == BLOCK_SIZE
