"""Structured outputs on a machine that is one step ahead: a forward is launched before the tokens are known that its masks follow from."""

from functools import partial

import pytest

from minllm import LLM, SamplingParams
from minllm.errors import SamplingError
from tests.engine.models import ending_model_directory
from tests.engine.running.test_step_graphs import QueueMachine, results, with_graphs
from tests.engine.schemas import structured_params

pytest.importorskip("llguidance")
SIZES = dict(device="cpu", max_model_len=256, max_num_seqs=8)


@pytest.fixture(scope="module")
def machine():
    return QueueMachine()


@pytest.fixture(scope="module")
def both(machine):
    """(the plain runner, that of a GPU) on one model."""
    with LLM(ending_model_directory(), **SIZES) as plain, LLM(ending_model_directory(), **SIZES) as ahead:
        with_graphs(ahead, machine)
        yield plain, ahead
        assert ahead.engine.cache_policy.usage().allocated == 0


params = partial(structured_params, max_tokens=40, seed=1)


FREE = SamplingParams(seed=4, max_tokens=9, ignore_eos=True)
MIXES = {
    "alone": [params(regex="[a-z]{8}")],
    "of several lengths": [params(regex=f"[a-d]{{{length}}}") for length in (1, 3, 9, 20)],
    "beside free texts": [params(choice=["abc", "d"]), FREE, params(regex="[0-9 ]{12}"), FREE, FREE],
    "more than slots": [params(regex="[a-z]{2,9}", seed=seed) if seed % 3 else FREE for seed in range(20)],
    "with penalties": [params(regex="[a-c]{9}", repetition_penalty=1.4, logprobs=2), params(regex="[a-c]{9}", temperature=0)],
    "beside a processor": [params(regex="[a-c]{9}"), SamplingParams(logits_processors=[lambda ids, x: -x], max_tokens=5, temperature=0)],
    "several completions": [params(regex="[a-c]{5}", n=3), FREE],
    "a scored prompt": [params(regex="[a-c]{5}", prompt_logprobs=1), FREE],
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_tokens_are_those_of_the_plain_runner(both, mix):
    prompts = [[3 + i] * (1 + 5 * i % 11) for i in range(len(mix))]
    plain, ahead = (results(llm.generate(prompts, mix)) for llm in both)
    assert ahead == plain


def test_a_sequence_takes_part_in_every_step(both, machine):
    """Its forward does not wait for the token before it: a graph is replayed for each token, and for one that is computed too far."""
    core, alone = both[1].llm_engine.core, params(regex="[ab]{30}")
    both[1].generate([[5]], alone)
    steps, launches = core.num_steps, machine.launches
    [output] = both[1].generate([[5]], alone)
    tokens = len(output.outputs[0].token_ids)
    assert output.outputs[0].finish_reason == "stop" and tokens > 9
    assert tokens <= core.num_steps - steps <= tokens + 1 and tokens <= machine.launches - launches <= tokens + 1


def test_a_choice_that_cannot_be_launched_fails_its_step_alone(both, monkeypatch):
    _, ahead = both
    runner, mask_logits, calls = ahead.engine.runner, ahead.engine.runner.ops.mask_logits, []

    def fails_once(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the launch failed")
        return mask_logits(*arguments)

    monkeypatch.setattr(runner.ops, "mask_logits", fails_once, raising=False)
    with pytest.raises(RuntimeError, match="the launch failed"):
        ahead.generate([[5]], params(regex="[ab]{30}"))
    assert results(ahead.generate([[5]], params(regex="[a-z]{8}"))) == results(both[0].generate([[5]], params(regex="[a-z]{8}")))


def test_a_request_that_is_stuck_or_aborted_leaves_the_others(both):
    _, ahead = both
    stuck = params(choice=["aaaa"], bad_words=["aa"])
    with pytest.raises(SamplingError) as error:
        ahead.generate([[5], [6], [7]], [stuck, params(regex="[ab]{9}"), FREE])
    assert [output.outputs[0].finish_reason for output in error.value.outputs] == ["error", "stop", "length"]
    engine = ahead.llm_engine
    engine.add_request("gone", [5], params(regex="[ab]{30}"))
    engine.add_request("stays", [6], params(regex="[ab]{9}"))
    last = [engine.step() for _ in range(4)][-1]
    engine.abort_request("gone")
    while engine.has_unfinished_requests():
        last = engine.step() or last
    assert last[-1].request_id == "stays" and last[-1].outputs[0].finish_reason == "stop"
    while engine.core.has_work:
        engine.core.step()
