"""Drafts from a model. One that drafts for itself is always right, unless a key is missing from its cache or lies where it should not."""

from dataclasses import replace

import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from minllm.engine.requests.sampling_params import SamplingParams as Params
from minllm.engine.scheduling.speculative import Speculation
from minllm.errors import InvalidOptionError
from tests.engine.checks import BLOCK_BYTES, tokens_of
from tests.engine.models import model_directory
from tests.engine.test_speculation import GREEDY, PROMPTS, SAMPLED, SMALL, everything, plain  # noqa: F401 - plain is a fixture

ITSELF = {"model": str(model_directory("small")), "num_speculative_tokens": 4}
CACHES = {
    "paged": {},
    "small blocks": dict(block_size=3),
    "radix": dict(enable_prefix_caching="radix"),
    "contiguous": dict(kv_cache_policy="contiguous", max_num_seqs=3),
    "limit": dict(length_prediction="limit"),
}


def accepted_by_itself(llm):
    """The share of drafts that were right."""
    stats = llm.llm_engine.stats()
    assert stats.spec_decode_num_draft_tokens > 0
    return stats.spec_decode_acceptance_rate


@pytest.mark.covering("cache", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("cache", CACHES)
def test_a_model_drafts_for_itself(plain, cache, policy):  # noqa: F811
    greedy, _ = plain
    options = dict(scheduling_policy=policy, max_num_batched_tokens=40, **CACHES[cache], **SMALL)
    with LLM(model_directory("small"), speculative_config=ITSELF, **options) as llm:
        for _ in range(2):
            assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert accepted_by_itself(llm) == 1.0
        llm.engine.cache_policy.check()
        assert llm.engine.cache_policy.usage().allocated == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("cache", ["small blocks", "radix"])
def test_its_cache_goes_where_the_models_goes(plain, preemption, cache):  # noqa: F811
    """Both caches take half of the memory each; what is swapped out comes back with the draft's keys."""
    greedy, _ = plain
    memory = dict(kv_cache_memory_bytes=18 * BLOCK_BYTES, swap_space_bytes=18 * BLOCK_BYTES)
    with LLM(model_directory("small"), speculative_config=ITSELF, preemption=preemption, **memory, **CACHES[cache], **SMALL) as llm:
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert llm.llm_engine.stats().num_preemptions > 0 and accepted_by_itself(llm) == 1.0


def test_forks_share_its_cache_too():
    """Completions of one prompt share its last block until they decode; drafts before that would write it together."""
    params = replace(SAMPLED[4], max_tokens=16)
    with LLM(model_directory("small"), speculative_config=ITSELF, **SMALL) as llm:
        [output] = llm.generate([PROMPTS[4][:1] + PROMPTS[0]], params)
        assert all(len(one.token_ids) == 16 for one in output.outputs) and len({tuple(one.token_ids) for one in output.outputs}) == 3
        assert accepted_by_itself(llm) > 0.99, "p and q differ by rounding alone"


def test_greedy_drafts_leave_every_text_as_it_is(plain):  # noqa: F811
    greedy, sampled = plain
    with LLM(model_directory("small"), speculative_config=ITSELF | {"draft_sample_method": "greedy"}, **SMALL) as llm:
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert accepted_by_itself(llm) == 1.0
        assert everything(llm.generate(PROMPTS, SAMPLED)) == everything(sampled)
        assert 0 < accepted_by_itself(llm) < 1, "a draw is seldom the likeliest token"


@pytest.mark.parametrize("cache", CACHES)
def test_it_pauses_and_computes_what_it_has_not_seen(plain, cache):  # noqa: F811
    """Drafts are worth their time for one sequence alone, and otherwise tried now and then: all of them are right, as if it had
    been asked in every step."""
    greedy, sampled = plain
    with LLM(model_directory("small"), speculative_config=ITSELF, max_num_batched_tokens=40, **CACHES[cache], **SMALL) as llm:
        speculation = Speculation(4, needs_room=True, best=lambda rate, count: 4 * (count == 1), trial_interval=lambda count: 5)
        llm.engine.scheduler.speculation, runner, caught_up = speculation, llm.engine.runner, []
        execute = runner.execute

        def counted(step):
            caught_up.extend(span.length for span in step.unseen)
            return execute(step)

        runner.execute = counted
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert accepted_by_itself(llm) == 1.0 and sum(caught_up) > 8
        llm.generate(PROMPTS, SAMPLED)
        assert accepted_by_itself(llm) > 0.99, "p and q differ by rounding alone"


def test_another_models_drafts_change_no_greedy_token():
    """The bundled model and its draft; requests that draw run beside and are drafted by their own parameters."""
    texts = ["class Point:\n    def __init__(self, x, y):\n", "def fib(n):\n", "import os\nimport", "for i in range("]
    params = [Params(temperature=0, max_tokens=40)] * 3 + [SamplingParams(temperature=0.9, top_p=0.9, seed=1, max_tokens=40)]
    with LLM(device="cpu", dtype="float32") as llm:
        expected = tokens_of(llm.generate(texts, params))
    with LLM(device="cpu", dtype="float32", speculative_config={"method": "draft_model", "num_speculative_tokens": 4}) as llm:
        found = tokens_of(llm.generate(texts, params))
        assert found[:3] == expected[:3] and 0 < len(found[3]) <= 40
        assert llm.llm_engine.stats().spec_decode_acceptance_rate > 0.2


def test_a_source_that_fails_is_switched_off(plain):  # noqa: F811
    greedy, _ = plain
    with LLM(model_directory("small"), speculative_config=ITSELF, **SMALL) as llm:
        source, calls = llm.engine.runner.speculator.source, []

        def failing(*arguments):
            calls.append(arguments)
            if len(calls) == 3:
                raise RuntimeError("out of luck")
            return type(source).propose(source, *arguments)

        source.propose = failing
        with pytest.warns(RuntimeWarning, match="Speculation is switched off, because drafting failed: RuntimeError\\('out of luck'\\)"):
            assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
        assert len(calls) == 3 and llm.engine.runner.speculator.source is None
        assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)


@pytest.mark.parametrize(
    "config, options, words",
    [
        ({"model": ""}, {}, "model='' is not allowed"),
        ({"model": 3}, {}, "model=3 is not allowed"),
        ({"model": "x", "method": "ngram"}, {}, "model='x' is not allowed: model is None with method=\"ngram\""),
        ({"model": "x", "prompt_lookup_max": 2}, {}, 'prompt_lookup_max=2 is not .* prompt_lookup_max is None with method="draft_model"'),
        ({"num_speculative_tokens_schedule": "often"}, {}, "schedule='often' is not allowed: .* is one of adaptive, constant"),
        ({"model": "x", "draft_sample_method": "best"}, {}, "draft_sample_method='best' is not allowed: .* one of probabilistic, greedy"),
        ({"model": str(model_directory("small"))}, {"kv_cache_policy": "virtual"}, "a draft model shares the block tables"),
        ({"method": "draft_model"}, {}, "data/models/draft' is not allowed: it has a vocabulary of 4096 tokens, and the model one of 1003"),
    ],
)
def test_wrong_drafts_are_refused_by_name(config, options, words):
    with pytest.raises(InvalidOptionError, match=words):
        LLM(model_directory("small"), speculative_config={"num_speculative_tokens": 2} | config, device="cpu", **options)


def test_a_draft_of_another_tokenizer_is_refused(tmp_path):
    for path in model_directory("small").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|endofword|>"))
    with pytest.raises(InvalidOptionError, match="has another tokenizer than the model: 1 of 1003 tokens have other numbers"):
        LLM(model_directory("small"), speculative_config={"model": tmp_path, "num_speculative_tokens": 2}, device="cpu")
