"""Less memory than the requests need at one time: what can never fit is refused, all others are served, some of them later or twice."""

import pytest

from minllm import LLM, SamplingParams
from minllm.errors import InvalidRequestError, OutOfMemoryError
from tests.engine.models import model_directory
from tests.models.random_models import prompt

PROMPTS = [prompt(length) for length in (3, 40, 17, 60, 9)]
PARAMS = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (30, 20, 30, 20, 1)]
ROOM = 183_300  # bytes: 179 tokens of this model, where all requests together need 230
CACHES = {
    "paged": dict(kv_cache_policy="paged"),
    "hash chain": dict(enable_prefix_caching="hash"),
    "radix tree": dict(enable_prefix_caching="radix"),
    "contiguous": dict(kv_cache_policy="contiguous", max_model_len=128),
    "virtual": dict(kv_cache_policy="virtual"),
}


@pytest.fixture(scope="module")
def expected():
    """The tokens where there is room for all of them."""
    with LLM(model_directory("small"), device="cpu", max_model_len=128) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
def test_what_cannot_fit_is_refused_and_the_others_are_served(monkeypatch, expected, options):
    monkeypatch.setattr("minllm.engine.build.memory_budget.MAX_HOST_BYTES", ROOM)
    with LLM(model_directory("small"), device="cpu", **options) as llm:
        policy, scheduler, running = llm.engine.cache_policy, llm.engine.scheduler, []
        execute = llm.engine.runner.execute
        monkeypatch.setattr(llm.engine.runner, "execute", lambda step: (running.append(len(scheduler.queues.running)), execute(step))[1])
        with pytest.raises(InvalidRequestError, match=f"and max_model_len={llm.max_model_len} allows"):
            llm.generate([PROMPTS[0], prompt(llm.max_model_len)], PARAMS[0])
        with llm.stream(PROMPTS[1], PARAMS[0]) as stream:
            next(stream)
            with pytest.raises(OutOfMemoryError, match="a text to be scored"):
                llm.logits(prompt(llm.max_model_len))
            assert len("".join(stream)) > 0 and stream.output.outputs[0].finish_reason == "length"
        running.clear()
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)] == expected
        assert max(running) < len(PROMPTS) or scheduler.queues.num_preemptions > 0
        policy.check()
        assert policy.usage().allocated == 0
