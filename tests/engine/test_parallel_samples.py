"""Several completions of one prompt: the prompt is computed and cached once, and each completion is what it would be alone."""

import dataclasses

import pytest

from minllm import LLM, SamplingParams
from minllm.errors import InvalidRequestError
from tests.engine.checks import check_parallel_samples
from tests.engine.models import model_directory
from tests.models.random_models import prompt

SAMPLED = SamplingParams(n=4, temperature=1.0, max_tokens=12, ignore_eos=True, seed=5)
POLICIES = {
    "paged": {},
    "small blocks": {"block_size": 3},
    "contiguous": {"kv_cache_policy": "contiguous"},
    "virtual": {"kv_cache_policy": "virtual"},
    "shared": {"enable_prefix_caching": True},
    "int8": {"kv_cache_dtype": "int8"},
    "kivi_int4": {"kv_cache_dtype": "kivi_int4", "kv_cache_residual_window": 32},
}


@pytest.mark.parametrize("options", POLICIES.values(), ids=POLICIES)
def test_completions_are_those_of_requests_of_their_own(options):
    with LLM(model_directory("small"), device="cpu", max_model_len=128, max_num_seqs=8, **options) as llm:
        check_parallel_samples(llm)


def test_the_prompt_is_held_once(llm):
    """40 tokens of prompt in blocks of 16: two full blocks are shared, and each of four completions has its own third one."""
    seen = []
    core, [sequences] = llm.llm_engine.core, llm._requests(prompt(40), SAMPLED)
    core.add(sequences[0])
    while core.step() and not sequences[0].is_finished:
        usage = llm.engine.cache_policy.usage()
        llm.engine.cache_policy.check()
        seen.append(usage.allocated // llm.engine.cache.shape.bytes_per_block)
    assert seen == [3] + [6] * 8 + [10] * 2, "2 shared ones, and a third that is copied for each; then those of tokens 48 to 51"


def test_requests_with_other_numbers_of_completions_side_by_side(llm):
    params = [dataclasses.replace(SAMPLED, n=n) for n in (3, 1, 2)]
    prompts = [prompt(17), prompt(16), prompt(40)]
    together = llm.generate(prompts, params)
    assert [[c.index for c in output.outputs] for output in together] == [[0, 1, 2], [0], [0, 1]]
    for one, of, output in zip(prompts, params, together, strict=True):
        assert llm.generate([one], of)[0].outputs == output.outputs


def test_more_completions_than_seats_come_in_turns(llm):
    whole = llm.generate([prompt(20)], dataclasses.replace(SAMPLED, n=11))[0]
    assert len(whole.outputs) == 11 and whole.finished and whole.metrics.generated_tokens == 11 * 12
    assert len({tuple(c.token_ids) for c in whole.outputs}) == 11
    assert llm.generate([prompt(20)], SAMPLED)[0].outputs == whole.outputs[:4]


def test_one_token_each_leaves_nothing_to_copy(llm):
    """They end with the prefill, before anything is written behind the prompt; the next request must not inherit their copies."""
    llm.generate([prompt(20)], dataclasses.replace(SAMPLED, max_tokens=1))
    assert llm.engine.cache_policy.take_copies() == []
    llm.engine.cache_policy.check()


def test_several_greedy_completions_and_streams_are_refused(llm):
    with pytest.raises(InvalidRequestError, match="n=2 is not allowed: n is 1 with temperature=0"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(InvalidRequestError, match=r"stream\(\) gives one completion and n=4"):
        llm.stream("def", SAMPLED)
    with pytest.raises(InvalidRequestError, match=r"stream\(\) gives one completion and best_of=3"):
        llm.stream("def", SamplingParams(best_of=3))
