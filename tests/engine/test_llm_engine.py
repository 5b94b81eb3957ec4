"""LLMEngine: requests come and go while others run, and faults end the requests that they concern."""

import time

import pytest

from minllm import LLM, SamplingParams
from minllm.errors import DeadlineError, InvalidOptionError, InvalidRequestError, OutOfMemoryError
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.models.random_models import prompt

PARAMS = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SMALL = dict(device="cpu", max_model_len=128, max_num_seqs=4)


@pytest.fixture
def engine():
    """An engine of four slots."""
    with LLM(model_directory("small"), **SMALL) as llm:
        yield llm.llm_engine
        assert llm.engine.cache_policy.usage().allocated == 0 and not llm.engine.scheduler.queues.running
        assert sorted(llm.engine.scheduler.queues._free_slots) == [0, 1, 2, 3]


def finish(engine, outputs=()):
    """The last output of each request; `outputs` came before."""
    outputs = {output.request_id: output for output in outputs}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.request_id not in outputs or not outputs[output.request_id].finished, "an end comes once"
            outputs[output.request_id] = output
    assert all(output.finished for output in outputs.values())
    return outputs


def tokens(output):
    return output.outputs[0].token_ids


def test_requests_join_while_others_run(llm, engine):
    expected = {str(length): llm.generate(prompt(length), PARAMS)[0] for length in (3, 17, 40)}
    outputs = {}
    for length in (3, 17, 40):
        engine.add_request(str(length), prompt(length), PARAMS)
        for _ in range(3):
            outputs |= {output.request_id: output for output in engine.step()}
    assert not any(output.finished for output in outputs.values())
    assert [len(tokens(outputs[name])) for name in ("3", "17", "40")] == [9, 6, 3], "a token for each in every step"
    found = finish(engine)
    for name, output in found.items():
        assert output.outputs == expected[name].outputs and output.prompt_token_ids == expected[name].prompt_token_ids
    assert engine.stats().num_steps == 9 + 7 and engine.step() == []


def test_an_id_is_that_of_one_request_at_a_time(engine):
    engine.add_request("a", prompt(3), PARAMS)
    with pytest.raises(InvalidRequestError, match="request_id='a' is running already"):
        engine.add_request("a", prompt(4), PARAMS)
    found = finish(engine)
    assert set(found) == {"a"}
    expected = found["a"].outputs
    engine.add_request("a", prompt(3), PARAMS)
    assert len(tokens(finish(engine)["a"])) == 10
    engine.add_request("", prompt(3), PARAMS)
    assert finish(engine)[""].outputs == expected, "an empty id is an id"


@pytest.mark.parametrize(("request_id", "params"), [(5, PARAMS), (None, PARAMS), (["a"], PARAMS), ("a", {}), ("a", {"n": 1}), ("a", "x")])
def test_an_id_is_a_text_and_parameters_are_a_class(engine, request_id, params):
    with pytest.raises(InvalidRequestError, match="is not allowed: it is a text" if params is PARAMS else "is not a SamplingParams"):
        engine.add_request(request_id, prompt(3), params)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("bad", [[], [1003], prompt(200), {"tokens": 5}])
def test_a_bad_request_changes_nothing(engine, bad):
    engine.add_request("good", prompt(3), PARAMS)
    with pytest.raises(InvalidRequestError):
        engine.add_request("bad", bad, PARAMS)
    engine.abort_request("bad")
    assert set(finish(engine)) == {"good"}


def test_a_request_that_can_never_fit_is_refused():
    with LLM(model_directory("small"), device="cpu", kv_cache_memory_bytes=2 * BLOCK_BYTES) as llm:
        params = SamplingParams(max_tokens=None)
        llm.llm_engine.add_request("a", prompt(20), params)
        assert llm.max_model_len == 32 and len(tokens(finish(llm.llm_engine)["a"])) == 12
        scheduler = llm.engine.scheduler
        scheduler.memory.policy.reserve("held elsewhere", [1], 0)
        llm.llm_engine.add_request("b", prompt(20), params)
        refused = finish(llm.llm_engine)["b"]
        assert refused.outputs[0].finish_reason == "error" and isinstance(refused.error, OutOfMemoryError)
        scheduler.memory.policy.free("held elsewhere")
        llm.llm_engine.add_request("c", prompt(20), params)
        assert len(tokens(finish(llm.llm_engine)["c"])) == 12, "others go on when there is room again"


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_aborted_requests_free_everything_at_once(engine, steps, n):
    sampled = SamplingParams(n=n, temperature=1.0, max_tokens=10, ignore_eos=True)
    engine.add_request("a", prompt(20), sampled)
    engine.add_request("b", prompt(9), PARAMS)
    for _ in range(steps):
        engine.step()
    engine.abort_request("a")
    engine.abort_request("a")
    assert engine.stats().num_running == min(steps, 1) and engine.stats().num_waiting == 1 - min(steps, 1)
    assert set(finish(engine)) == {"b"}


def test_deadlines(engine):
    engine.add_request("late", prompt(3), SamplingParams(max_tokens=10, n=2, temperature=1.0), deadline=0.0)
    engine.add_request("later", prompt(3), SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), deadline=0.2)
    engine.add_request("free", prompt(3), PARAMS, deadline=1000)
    first = engine.step()
    time.sleep(0.21)
    found = finish(engine, first)
    assert found["free"].error is None and len(tokens(found["free"])) == 10
    for name in ("late", "later"):
        assert isinstance(found[name].error, DeadlineError) and found[name].outputs[0].finish_reason == "error"
    assert tokens(found["late"]) == [] and tokens(found["later"]) != []


def test_priorities(engine):
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    for name in range(4):
        engine.add_request(f"running {name}", prompt(3), long)
    engine.step()
    for name, priority in (("low", 5), ("usual", 0), ("high", -5)):
        engine.add_request(name, prompt(3), PARAMS, priority=priority)
    engine.abort_request("running 0")
    begun = []
    while engine.has_unfinished_requests():
        begun += [output.request_id for output in engine.step() if output.request_id not in begun]
    assert [name for name in begun if "running" not in name] == ["high", "usual", "low"]


def test_stats(engine):
    for name in range(6):
        engine.add_request(str(name), prompt(20), PARAMS)
    assert (engine.stats().num_running, engine.stats().num_waiting, engine.stats().kv_cache_usage) == (0, 6, 0.0)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (4, 2, 1)
    assert stats.kv_cache_usage == pytest.approx(8 / engine.engine.cache_policy.num_blocks)
    finish(engine)
    assert engine.stats().num_running == engine.stats().num_waiting == engine.stats().kv_cache_usage == 0


@pytest.mark.parametrize("name", ["linear", "attention", "sample", "advance", "write_slots"])
@pytest.mark.parametrize("call", [0, 1, 2])
def test_an_operation_that_raises_ends_the_requests_of_its_step(engine, monkeypatch, name, call):
    """Others, which wait for a slot, get their tokens; and the next requests run as if nothing had been."""
    ops, calls = engine.engine.ops, []
    original = getattr(ops, name)

    def fail(*arguments, **options):
        calls.append(name)
        if len(calls) == call + 1:
            raise RuntimeError("the device fell over")
        return original(*arguments, **options)

    expected = {}
    for number in range(6):
        engine.add_request(str(number), prompt(5 + number), PARAMS)
    expected = finish(engine)
    monkeypatch.setattr(ops, name, fail)
    for number in range(6):
        engine.add_request(str(number), prompt(5 + number), PARAMS)
    found = finish(engine)
    failed = [output for output in found.values() if output.error is not None]
    assert len(found) == 6 and 1 <= len(failed) <= 4
    assert all("fell over" in str(output.error) and output.outputs[0].finish_reason == "error" for output in failed)
    for number, output in found.items():
        assert output.outputs == expected[number].outputs or output in failed
        assert tokens(output) == tokens(expected[number])[: len(tokens(output))]


class Unlucky:
    """A decoder that raises at its third token."""

    def __init__(self, decoder):
        self.decoder, self.left = decoder, 2

    def push(self, token_id):
        self.left -= 1
        if self.left < 0:
            raise UnicodeError("no such character")
        return self.decoder.push(token_id)

    def push_all(self, token_ids):
        return "".join(map(self.push, token_ids))

    def finish(self):
        raise UnicodeError("no such end")


@pytest.mark.parametrize("stop", [None, ["never to be seen"]])
def test_a_decoder_that_raises_ends_its_own_request(engine, stop):
    """With stop strings the scheduler reads the text, without them whoever asks for an output."""
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, stop=stop)
    for name in "abc":
        engine.add_request(name, prompt(7), params)
    [unlucky] = engine._requests["b"]
    unlucky._text.decoder = Unlucky(unlucky._text.decoder)
    found = finish(engine)
    assert [found[name].outputs[0].finish_reason for name in "abc"] == ["length", "error", "length"]
    assert isinstance(found["b"].error, UnicodeError) and len(tokens(found["b"])) == 3
    assert tokens(found["a"]) == tokens(found["c"]) and len(tokens(found["a"])) == 10
    assert found["a"].outputs[0].text.startswith(found["b"].outputs[0].text)


def test_a_stream_whose_decoder_raises_frees_everything(llm):
    stream = llm.stream("def f(x):", PARAMS)
    text = stream._sequence._text
    text.decoder = Unlucky(text.decoder)
    with pytest.raises(UnicodeError, match="no such character"):
        list(stream)
    assert llm.engine.cache_policy.usage().allocated == 0


def test_a_tokenizer_that_raises_ends_its_request_alone(engine, monkeypatch):
    """Texts of log-probabilities are made when the results of a step are read."""
    scored = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=1)
    engine.add_request("beside", prompt(9), PARAMS)
    expected = tokens(finish(engine)["beside"])
    engine.add_request("scored", prompt(7), scored)
    engine.add_request("beside", prompt(9), PARAMS)
    engine.step()

    def fail(token_id):
        raise UnicodeError("no such token")

    with monkeypatch.context() as patch:
        patch.setattr(engine.core, "tokenizer", type("Broken", (), dict(text_of=staticmethod(fail))))
        found = finish(engine)
    assert isinstance(found["scored"].error, UnicodeError) and len(tokens(found["scored"])) == 1
    assert tokens(found["beside"]) == expected
    engine.add_request("next", prompt(7), scored)
    assert len(finish(engine)["next"].outputs[0].logprobs) == 10


def test_the_scheduling_policy_may_change_while_requests_run(engine):
    for i in range(3):
        engine.add_request(f"alone {i}", prompt(9, seed=i), PARAMS)
    alone = [tokens(output) for output in finish(engine).values()]
    outputs = []
    for i, policy in enumerate(["static", "in_flight", "prefill_first"]):
        engine.set_scheduling_policy(policy)
        engine.add_request(f"beside {i}", prompt(9, seed=i), PARAMS)
        outputs += engine.step()
    assert [tokens(output) for output in finish(engine, outputs).values()] == alone
    with pytest.raises(InvalidOptionError, match="scheduling_policy='first' is not allowed: give one of split_fuse, in_flight"):
        engine.set_scheduling_policy("first")
