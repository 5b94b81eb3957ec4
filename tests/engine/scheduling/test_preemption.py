"""Preemption: who has to go, in which way, and that everybody comes back as he left."""

import pytest

from minllm.engine.core import EngineCore
from minllm.errors import OutOfMemoryError, PreemptedError
from tests.engine.scheduling.scripted_runner import check_books, check_nothing_is_left, scripted, small_engine


def crowd(count, prompt=5, tokens=11, **options):
    """Requests whose answers outgrow a cache that their prompts fit; each has tokens of its own."""
    starts = [40 * name for name in range(count)]
    return [scripted(s // 40, range(s, s + prompt), range(s, s + tokens), tokens, **options)[0] for s in starts]


def finish(scheduler, runner, sequences):
    """Run them; returns whether each was running, after each step."""
    core, seen = EngineCore(scheduler, runner, tokenizer=None), []
    for sequence in sequences:
        core.add(sequence)
    while core.has_work:
        core.step()
        check_books(scheduler.queues)
        seen.append([sequence in scheduler.queues.running for sequence in sequences])
    check_nothing_is_left(scheduler, runner.max_num_seqs)
    return seen


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("cache", ["paged", "hash chain", "radix tree"])
def test_the_newest_goes_first_and_all_get_their_tokens(preemption, ahead, cache):
    scheduler, runner = small_engine(blocks=7, seqs=3, preemption=preemption, ahead=ahead, cache=cache, budget=32)
    sequences = crowd(3)
    finish(scheduler, runner, sequences)
    assert [sequence.output_token_ids for sequence in sequences] == [list(range(start, start + 11)) for start in (0, 40, 80)]
    preemptions = [sequence.num_preemptions for sequence in sequences]
    assert preemptions[0] == 0 < preemptions[2] and scheduler.queues.num_preemptions == sum(preemptions)


def test_swapped_sequences_are_not_computed_again():
    computed = {}
    for preemption in ("recompute", "swap"):
        scheduler, runner = small_engine(blocks=7, seqs=3, preemption=preemption, budget=32)
        finish(scheduler, runner, crowd(3))
        assert scheduler.queues.num_preemptions > 0
        computed[preemption] = sum(length for step in runner.steps for *_, length in step)
    assert computed["swap"] == 3 * (5 + 10) < computed["recompute"]


def test_a_sequence_that_comes_back_alone_has_a_slot_that_was_written():
    """Nothing else is computed in the step in which it is swapped in, so its slot is written with the next one."""
    scheduler, runner = small_engine(blocks=7, seqs=2, preemption="swap", budget=32)
    seen = finish(scheduler, runner, crowd(2, tokens=13))
    assert any(not first and second for first, second in seen), "the second one was alone"


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_full_swap_space_falls_back_to_recomputing(chunks):
    scheduler, runner = small_engine(blocks=7, seqs=3, preemption="swap", chunks=chunks, budget=32)
    sequences = crowd(3)
    finish(scheduler, runner, sequences)
    assert scheduler.queues.num_preemptions > 0
    assert [sequence.output_token_ids for sequence in sequences] == [list(range(start, start + 11)) for start in (0, 40, 80)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_dropped_requests_say_why(ahead):
    scheduler, runner = small_engine(blocks=7, seqs=3, preemption="drop", ahead=ahead, budget=32)
    sequences = crowd(3)
    finish(scheduler, runner, sequences)
    assert sequences[0].finish_reason == "length" and sequences[2].finish_reason == "error"
    dropped = sequences[2]
    assert isinstance(dropped.error, PreemptedError)
    assert f'request 2 after {dropped.num_tokens} tokens, and preemption="drop" ends such requests' in str(dropped.error)
    assert dropped.output_token_ids == list(range(80, 80 + len(dropped.output_token_ids)))


@pytest.mark.parametrize("preemption", ["recompute", "swap", "drop"])
def test_who_keeps_room_for_everything_is_never_preempted(preemption):
    scheduler, runner = small_engine(blocks=7, seqs=3, preemption=preemption, prediction="limit", budget=32)
    sequences = crowd(3)
    seen = finish(scheduler, runner, sequences)
    assert scheduler.queues.num_preemptions == 0 and max(map(sum, seen)) == 1, "four blocks each, so one at a time"
    assert [len(sequence.output_token_ids) for sequence in sequences] == [11, 11, 11]


def test_a_mean_of_past_answers_keeps_room_for_such():
    """At first for a long answer, whatever max_tokens is; after many of two tokens three run together, and after long ones one alone."""
    scheduler, runner = small_engine(blocks=8, seqs=3, prediction="mean", budget=64)
    most = []
    for tokens in [19, *[2] * 200, *[19] * 200]:
        requests = [scripted(name, range(5), range(tokens), 20)[0] for name in range(3)]
        most.append(max(map(sum, finish(scheduler, runner, requests))))
    assert (most[0], most[200], most[-1]) == (1, 3, 1)


@pytest.mark.parametrize("cache", ["hash chain", "radix tree"])
def test_who_was_swapped_out_comes_back_under_his_own_salt(cache):
    """Blocks of a salted sequence are found by its own salt and by no other, also after it was swapped out and in."""
    scheduler, runner = small_engine(blocks=9, seqs=2, preemption="swap", cache=cache, budget=32)
    secret = crowd(2, prompt=9, tokens=13, salt="secret")
    finish(scheduler, runner, secret)
    assert secret[1].num_preemptions > 0
    for salt, found in (("", 0), ("other", 0), ("secret", 8)):
        [spy] = scripted("spy", range(40, 49), [], 1, salt=salt)
        finish(scheduler, runner, [spy])
        assert spy.num_cached_tokens == found, salt


def test_who_finds_no_room_although_nobody_runs_ends_alone():
    """Something else holds the blocks: a text that is scored, for instance."""
    scheduler, runner = small_engine(blocks=4)
    core = EngineCore(scheduler, runner, tokenizer=None)
    scheduler.memory.policy.reserve("scored", range(3 * scheduler.memory.block_size))
    long, short = scripted("long", range(2 * scheduler.memory.block_size), range(20), 2)[0], scripted("short", range(2), range(20), 2)[0]
    core.add(long)
    core.add(short)
    while core.has_work:
        core.step()
    assert long.finish_reason == "error" and isinstance(long.error, OutOfMemoryError)
    assert short.finish_reason == "length"
    scheduler.memory.policy.free("scored")
    check_nothing_is_left(scheduler, 4)


def test_who_runs_alone_and_finds_no_block_ends_alone():
    scheduler, runner = small_engine(blocks=3)
    core = EngineCore(scheduler, runner, tokenizer=None)
    one = scripted("one", range(scheduler.memory.block_size), range(100), scheduler.memory.block_size + 1)[0]
    core.add(one)
    core.step()
    scheduler.memory.policy.reserve("scored", range(2 * scheduler.memory.block_size))
    while core.has_work:
        core.step()
    assert one.finish_reason == "error" and isinstance(one.error, OutOfMemoryError)
    scheduler.memory.policy.free("scored")
    check_nothing_is_left(scheduler, 4)
