"""What each of the other policies computes first, step by step."""

import pytest

from minllm.engine.core import EngineCore
from tests.engine.scheduling.scripted_runner import check_nothing_is_left, scripted, small_engine


def steps(policy, lengths, tokens, budget=8, seqs=8):
    """The spans of each step, as a text: the name and length of each; the first request is a step ahead of the others."""
    scheduler, runner = small_engine(blocks=100, seqs=seqs, budget=budget, policy=policy)
    core = EngineCore(scheduler, runner, tokenizer=None)
    for name, length in lengths.items():
        core.add(scripted(name, range(length), range(20), tokens)[0])
        if name == next(iter(lengths)):
            core.step()
    while core.has_work:
        core.step()
    check_nothing_is_left(scheduler, seqs)
    return [" ".join(f"{name}{length}" for name, _, length in step) for step in runner.steps]


def test_in_flight_computes_whole_prompts_beside_decodes():
    assert steps("in_flight", {"a": 3, "b": 5, "c": 4, "d": 1}, 3) == ["a3", "a1 b5", "a1 b1 c4 d1", "b1 c1 d1", "c1 d1"]


def test_in_flight_splits_only_what_no_step_could_hold():
    assert steps("in_flight", {"a": 3, "b": 19}, 3) == ["a3", "a1 b7", "a1 b7", "b5", "b1", "b1"]


@pytest.mark.parametrize(("policy", "expected"), [
    ("in_flight", ["a3", "a1", "a1", "b8", "b1 c1", "b1 c1", "c1"]),
    ("prefill_first", ["a3", "b8", "c1", "a1 b1 c1", "a1 b1 c1"]),
])  # fmt: skip
def test_a_prompt_of_the_whole_budget_enters_an_empty_step_and_nobody_overtakes_it(policy, expected):
    assert steps(policy, {"a": 3, "b": 8, "c": 1}, 3) == expected


def test_prefill_first_lets_decodes_wait():
    assert steps("prefill_first", {"a": 3, "b": 5, "c": 4, "d": 1}, 3) == ["a3", "b5", "c4 d1", "a1 b1 c1 d1", "a1 b1 c1 d1"]


def test_a_static_batch_is_closed_when_it_decodes():
    """The others arrive before the first decode step, except for those that find no slot."""
    found = steps("static", {"a": 3, "b": 5, "c": 4, "d": 1}, 3, seqs=2)
    assert found == ["a3", "b5", "a1 b1", "a1 b1", "c4 d1", "c1 d1", "c1 d1"]


def test_who_arrives_while_a_static_batch_decodes_waits_for_its_end():
    scheduler, runner = small_engine(policy="static", blocks=100)
    core = EngineCore(scheduler, runner, tokenizer=None)
    core.add(scripted("a", range(3), range(9), 5)[0])
    for _ in range(2):
        core.step()
    core.add(scripted("b", range(3), range(9), 2)[0])
    while core.has_work:
        core.step()
    assert [[name for name, *_ in step] for step in runner.steps] == [["a"]] * 5 + [["b"]] * 2


@pytest.mark.parametrize("policy", ["split_fuse", "in_flight", "prefill_first", "static"])
def test_the_budget_of_one_token(policy):
    found = steps(policy, {"a": 3, "b": 2}, 2, budget=1)
    assert {part for step in found for part in step.split()} == {"a1", "b1"} and len("".join(found).replace(" ", "")) == 2 * (3 + 1 + 2 + 1)
