"""The scheduler around a runner that only pretends: whatever comes, everybody gets his tokens, and everything comes back."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.cache.paged import PagedPolicy
from minllm.engine.core import EngineCore
from minllm.engine.scheduling.policies import POLICIES
from minllm.errors import DeadlineError, OutOfMemoryError
from tests.engine.scheduling.scripted_runner import (
    BLOCK_SIZE,
    CACHES,
    EOS,
    check_books,
    check_nothing_is_left,
    expected_tokens,
    scripted,
    small_engine,
)

MOST_STEPS = 5000
PREDICTIONS = ("none", "limit", "mean")
PREEMPTIONS = ("recompute", "swap", "auto", "drop")


@dataclass(frozen=True)
class Planned:
    """A request, and what happens to it. `aborted` and `late`: after this number of steps, or never."""

    prompt: int
    tokens: int  # before its end of sequence
    max_tokens: int
    n: int
    priority: int
    arrives: int  # step
    aborted: int | None
    late: int | None
    shares: bool  # whether its prompt begins as others do
    processed: bool  # whether the host changes its logits
    salt: str


PLANNED = st.builds(
    Planned, prompt=st.integers(1, 13), tokens=st.integers(0, 12), max_tokens=st.integers(0, 9), n=st.sampled_from([1, 1, 1, 2, 3]),
    priority=st.sampled_from([0, 0, 0, -1, 2]), arrives=st.sampled_from([0, 0, 0, 1, 2, 5, 9]),
    aborted=st.sampled_from([None] * 5 + [0, 1, 2, 3, 5, 8]), late=st.sampled_from([None] * 7 + [1, 3, 6]), shares=st.booleans(),
    processed=st.sampled_from([False, False, True]), salt=st.sampled_from(["", "", "tenant"]),
)  # fmt: skip
ENGINES = st.fixed_dictionaries(
    dict(
        blocks=st.integers(6, 12), seqs=st.integers(1, 4), budget=st.sampled_from([1, 2, 7, 64]), policy=st.sampled_from(list(POLICIES)),
        prediction=st.sampled_from(PREDICTIONS), preemption=st.sampled_from(PREEMPTIONS), cache=st.sampled_from(list(CACHES)),
        ahead=st.integers(0, 1), chunks=st.sampled_from([0, 1, 6]), drafts=st.sampled_from([0, 0, 1, 3, 6]),
    )
)  # fmt: skip


def sequences_of(number, planned):
    """The sequences of a request; its prompt is its own or begins as all shared ones."""
    prompt = [5 + i for i in range(planned.prompt)] if planned.shares else [1000 + 50 * number + i for i in range(planned.prompt)]
    tokens = [100 + 20 * number + i for i in range(planned.tokens)]
    processors = (lambda output, logits: logits,) if planned.processed else ()
    return scripted(
        number, prompt, tokens, planned.max_tokens, planned.n, planned.salt, planned.priority, planned.late, processors
    )  # fmt: skip


def run(requests, engine):
    """Run requests as planned on a small engine; returns (scheduler, runner, sequences of each request)."""
    scheduler, runner = small_engine(**engine)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [sequences_of(number, planned) for number, planned in enumerate(requests)]
    reported = set()
    for step in range(MOST_STEPS):
        clock = SimpleNamespace(perf_counter=lambda step=step: step)
        for planned, sequences in zip(requests, made, strict=True):
            if planned.arrives == step:
                core.add(sequences[0])
            if planned.aborted is not None and planned.arrives + planned.aborted == step:
                core.abort(sequences)
                reported.update(sequences)
        first = scheduler.queues.running[0] if scheduler.queues.running else None
        preempted = {sequence: sequence.num_preemptions for sequence in scheduler.queues.running}
        with mock.patch("minllm.engine.scheduling.queues.time", clock):
            moved = core.step()
        check_books(scheduler.queues)
        if first is not None:
            assert first.num_preemptions == preempted[first], "the oldest is never preempted"
        assert all(sequence.output_token_ids or sequence.is_finished for sequence in moved)
        reported.update(sequence for sequence in moved if sequence.is_finished)
        if not core.has_work and step > 9:
            break
    else:
        raise AssertionError("somebody waits for ever")
    assert reported == {sequence for sequences in made for sequence in sequences}, "every end is reported"
    check_nothing_is_left(scheduler, engine["seqs"])
    assert runner.unread == 0 and runner.most_unread <= engine["ahead"] + 1
    return scheduler, runner, made


@settings(max_examples=400, deadline=None)
@given(requests=st.lists(PLANNED, min_size=1, max_size=8), engine=ENGINES)
def test_every_request_gets_its_tokens_and_everything_comes_back(requests, engine):
    _, _, made = run(requests, engine)
    for planned, sequences in zip(requests, made, strict=True):
        for sequence in sequences:
            expected, found = expected_tokens(sequence), sequence.output_token_ids
            if sequence.finish_reason == "abort":
                assert planned.aborted is not None and found == expected[: len(found)]
            elif sequence.finish_reason == "error":
                is_late = isinstance(sequence.error, DeadlineError)
                assert planned.late is not None if is_late else isinstance(sequence.error, OutOfMemoryError)
                assert is_late or engine["preemption"] == "drop"
                assert found == expected[: len(found)]
            else:
                assert found == expected
                assert sequence.finish_reason == ("stop" if EOS in found else "length")


@given(requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=8), engine=ENGINES)
def test_who_came_first_gets_the_first_token_first(requests, engine):
    """First tokens come in the order of arrival, whatever the policy, since nobody overtakes in the queue."""
    scheduler, runner = small_engine(**engine | dict(preemption="recompute"))
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(number, range(prompt), range(20), max_tokens)[0] for number, (prompt, max_tokens) in enumerate(requests)]
    for sequence in made:
        core.add(sequence)
    begun = []
    while core.has_work:
        begun += [s for s in core.step() if s not in begun]
    assert begun == made
    check_nothing_is_left(scheduler, engine["seqs"])


@given(priorities=st.lists(st.integers(-2, 2), min_size=2, max_size=8), policy=st.sampled_from(list(POLICIES)))
def test_lower_priorities_run_earlier(priorities, policy):
    scheduler, runner = small_engine(seqs=1, policy=policy)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(number, range(3), range(3), 2, priority=priority)[0] for number, priority in enumerate(priorities)]
    for sequence in made:
        core.add(sequence)
    ended = []
    while core.has_work:
        ended += [sequence for sequence in core.step() if sequence.is_finished]
    assert ended == sorted(made, key=lambda sequence: (sequence.priority, int(sequence.request_id)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_steps_are_launched_before_the_ones_before_are_read(ahead, policy):
    scheduler, runner = small_engine(ahead=ahead, policy=policy)
    core = EngineCore(scheduler, runner, tokenizer=None)
    [sequence] = scripted("a", [1], range(20), 12)
    core.add(sequence)
    for count in range(1, 13):
        assert core.step() == [sequence] and len(sequence.output_token_ids) == count
        assert runner.number == min(12, count + ahead)
    assert sequence.is_finished and runner.most_unread == ahead + 1 and not core.has_work


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_end_that_nobody_foresaw_costs_a_step(ahead):
    scheduler, runner = small_engine(ahead=ahead)
    core = EngineCore(scheduler, runner, tokenizer=None)
    [sequence] = scripted("a", [1], [7, 8], 9)
    core.add(sequence)
    core.run([sequence])
    while core.has_work:
        assert core.step() == []
    assert sequence.output_token_ids == [7, 8, EOS] and runner.number == 3 + ahead
    check_nothing_is_left(scheduler, 4)


def test_a_request_that_can_never_fit_is_named():
    scheduler, _ = small_engine(blocks=3)
    scheduler.queues.add(scripted("a", range(6), [], 6)[0])
    with pytest.raises(OutOfMemoryError, match="7 tokens and max_tokens=6 need room for 13 tokens, .* has room for 12"):
        scheduler.queues.add(scripted("b", range(7), [], 6)[0])
    assert scheduler.queues.num_unfinished == 1, "what is refused changes nothing"


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_held_elsewhere_are_an_error_not_a_hang(policy):
    scheduler, runner = small_engine(blocks=4, policy=policy, prediction="limit")
    memory = scheduler.memory.policy
    memory.reserve("scoring", [1], 2 * BLOCK_SIZE - 1)
    core = EngineCore(scheduler, runner, tokenizer=None)
    [sequence] = scripted("a", range(6), range(9), 6)
    core.add(sequence)
    with pytest.raises(OutOfMemoryError, match="3 more KV cache blocks .* 2 of 4 are free and unpromised"):
        core.run([sequence])
    assert sequence.is_finished and memory.tokens("scoring") == [1] and memory.usage().allocated == 8 * BLOCK_SIZE
    assert scheduler.queues.num_unfinished == 0


def test_leaving_early_frees_everything():
    scheduler, runner = small_engine(prediction="limit", blocks=12)
    core = EngineCore(scheduler, runner, tokenizer=None)
    [one], [other] = scripted("a", range(5), range(9), 8), scripted("b", range(2), range(9), 2)
    core.add(one)
    core.step()
    usage, block_bytes = scheduler.memory.policy.usage(), 8 * BLOCK_SIZE
    assert (usage.allocated, usage.promised) == (2 * block_bytes, 2 * block_bytes), "two blocks for now, and as many to come"
    core.add(other)
    core.step()
    assert len(scheduler.queues.running) == 2
    core.abort([one])
    assert scheduler.queues.running == [other] and scheduler.memory.policy.usage().allocated == block_bytes
    core.run([other])
    assert one.finish_reason == "abort" and other.output_token_ids == [0, 1]
    check_nothing_is_left(scheduler, 4)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("where", ["fails_at", "lost"])
@pytest.mark.parametrize("cache", CACHES)
def test_a_failing_step_ends_its_own_requests_alone(ahead, step, where, cache):
    """Those of the step get its error; others, which arrive later, run, and believe no block that was never computed."""
    scheduler, runner = small_engine(blocks=24, ahead=ahead, cache=cache, **{where: frozenset([step])})
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(name, range(9), range(9), 8)[0] for name in ("a", "b")]
    for sequence in made:
        core.add(sequence)
    moved = []
    while core.has_work:
        moved += core.step()
        check_books(scheduler.queues)
    concerned = {name for name, _, _ in runner.steps[step - 1]}
    for sequence in made:
        if sequence.request_id in concerned:
            assert sequence.finish_reason == "error" and f"step {step}" in str(sequence.error) and sequence in moved
            assert sequence.output_token_ids == list(range(len(sequence.output_token_ids)))
        else:
            assert sequence.output_token_ids == list(range(8))
    check_nothing_is_left(scheduler, 4)
    scheduler.memory.policy.check()
    [later] = scripted("c", range(9), range(9), 8)
    core.add(later)
    core.run([later])
    assert later.output_token_ids == list(range(8))
    assert later.num_cached_tokens == 0 or len(concerned) < len(made), "what was never computed is not believed"
    check_nothing_is_left(scheduler, 4)


FAILING = st.frozensets(st.integers(1, 24), max_size=3)


@given(requests=st.lists(PLANNED, min_size=1, max_size=6), engine=ENGINES, fails_at=FAILING, lost=FAILING)
def test_whatever_steps_fail_nobody_gets_other_tokens_than_his_own(requests, engine, fails_at, lost):
    scheduler, runner = small_engine(**engine, fails_at=fails_at, lost=lost)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [sequences_of(number, replace(planned, late=None)) for number, planned in enumerate(requests)]
    for sequences in made:
        core.add(sequences[0])
    for _ in range(MOST_STEPS):
        core.step()
        check_books(scheduler.queues)
        if not core.has_work:
            break
    check_nothing_is_left(scheduler, engine["seqs"])
    for sequence in [sequence for sequences in made for sequence in sequences]:
        expected, found = expected_tokens(sequence), sequence.output_token_ids
        assert found == (expected[: len(found)] if sequence.finish_reason == "error" else expected)


@pytest.mark.parametrize("failure", ["fails_at", "lost"])
def test_a_failing_step_that_was_to_copy_a_forks_blocks(failure):
    """The second completion shares its prompt's block until it decodes; the step that fails holds another request's prompt alone."""
    scheduler, runner = small_engine(policy="prefill_first", cache=CopyingPolicy, **{failure: frozenset([2])})
    core = EngineCore(scheduler, runner, tokenizer=None)
    forked, [other] = scripted("a", range(2), range(9), 2, n=2), scripted("b", range(50, 52), range(9), 2)
    core.add(forked[0])
    core.step()
    core.add(other)
    core.step()
    assert runner.steps[1] == [("b", 0, 2)] and other.finish_reason == "error"
    core.run(forked)
    assert [sequence.output_token_ids for sequence in forked] == [[0, 1], [1, 2]]
    check_nothing_is_left(scheduler, 4)


@pytest.mark.parametrize("failure", ["fails_at", "lost"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_failing_step_into_which_a_sequence_was_swapped(failure, ahead):
    """It computes nothing in that step, and its slot may not have been written."""
    quiet, runner = small_engine(blocks=7, seqs=3, preemption="swap", ahead=ahead, budget=32)
    entered = entering_alone(quiet, runner)
    assert entered, "somebody comes back into a step that computes others"
    for number in entered:
        scheduler, runner = small_engine(blocks=7, seqs=3, preemption="swap", ahead=ahead, budget=32, **{failure: frozenset([number])})
        sequences = crowd()
        entering_alone(scheduler, runner, sequences)
        for sequence in sequences:
            assert sequence.finish_reason in ("length", "error")
            assert sequence.output_token_ids == expected_tokens(sequence)[: len(sequence.output_token_ids)]
        assert {"length", "error"} == {sequence.finish_reason for sequence in sequences}
        check_nothing_is_left(scheduler, 3)


@pytest.mark.parametrize("cache", ["hash chain", "radix tree"])
@pytest.mark.parametrize("failure", ["fails_at", "lost"])
def test_a_block_that_a_failing_decode_step_was_to_fill_is_not_shared(failure, cache):
    scheduler, runner = small_engine(cache=cache, **{failure: frozenset([3])})
    core = EngineCore(scheduler, runner, tokenizer=None)
    [sequence] = scripted("a", range(2 * BLOCK_SIZE - 2), range(9), 8)
    core.add(sequence)
    while core.has_work:
        core.step()
    assert sequence.finish_reason == "error" and sequence.num_tokens == 2 * BLOCK_SIZE
    [later] = scripted("b", [*sequence.token_ids(0, 2 * BLOCK_SIZE), 50], range(9), 3)
    core.add(later)
    core.run([later])
    assert later.num_cached_tokens == 0
    check_nothing_is_left(scheduler, 4)


class CopyingPolicy(PagedPolicy):
    """Copies all blocks of a sequence when it is forked, as the virtual cache does."""

    def fork(self, parent, child):
        known = self.tokens(parent)
        self.reserve(child, known)
        self._copies += zip(self.table(parent), self.table(child), strict=True)


def crowd():
    """Requests whose answers outgrow the cache."""
    return [scripted(name, range(s, s + 5), range(s, s + 11), 11)[0] for name, s in (("a", 0), ("b", 40), ("c", 80))]


def entering_alone(scheduler, runner, sequences=None):
    """Run a crowd; returns the numbers of the steps into which a sequence came that computes nothing there."""
    core, found, execute = EngineCore(scheduler, runner, tokenizer=None), [], runner.execute

    def noting(step):
        if any(sequence not in [span.sequence for span in step.spans] for sequence in step.entered):
            found.append(runner.number + 1)
        return execute(step)

    runner.execute = noting
    for sequence in sequences or crowd():
        core.add(sequence)
    while core.has_work:
        core.step()
        check_books(scheduler.queues)
    return found


def test_run_raises_the_error_of_a_step():
    scheduler, runner = small_engine(fails_at=frozenset([2]))
    core = EngineCore(scheduler, runner, tokenizer=None)
    [sequence] = scripted("a", range(3), range(9), 8)
    core.add(sequence)
    with pytest.raises(RuntimeError, match="the launch of step 2 failed"):
        core.run([sequence])
    check_nothing_is_left(scheduler, 4)


def test_siblings_of_a_prompt_that_is_dropped_go_on():
    """The prompt is preempted half-way, and its further completions compute it themselves."""
    scheduler, runner = small_engine(blocks=6, budget=3, preemption="drop", seqs=4)
    core = EngineCore(scheduler, runner, tokenizer=None)
    [old], young = scripted("a", range(7), range(9), 9), scripted("b", range(50, 63), range(20, 30), 4, n=3)
    core.add(old)
    core.add(young[0])
    for _ in range(100):
        core.step()
        check_books(scheduler.queues)
    assert not core.has_work and old.output_token_ids == list(range(9))
    check_nothing_is_left(scheduler, 4)


class BadDecoder:
    """Cannot decode token 3."""

    def push(self, token_id):
        if token_id == 3:
            raise UnicodeError("token 3 is none of mine")
        return "x"

    def finish(self):
        return ""


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_decoder_that_throws_ends_its_request_alone(ahead):
    scheduler, runner = small_engine(ahead=ahead, blocks=12)
    core = EngineCore(scheduler, runner, tokenizer=None)
    made = [scripted(name, range(5), range(9), 8)[0] for name in ("a", "b", "c")]
    script = made[1].script
    made[1] = replace(made[1], decoder=BadDecoder(), params=replace(made[1].params, stop=["yy"]))
    made[1].script = script
    for sequence in made:
        core.add(sequence)
    while core.has_work:
        core.step()
        check_books(scheduler.queues)
    assert [sequence.finish_reason for sequence in made] == ["length", "error", "length"]
    assert isinstance(made[1].error, UnicodeError)
    assert made[0].output_token_ids == made[2].output_token_ids == list(range(8))
    check_nothing_is_left(scheduler, 4)
