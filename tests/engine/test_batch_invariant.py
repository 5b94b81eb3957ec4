"""batch_invariant=True: scores are the same bits alone and in any company; and what excludes it is refused by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from minllm.errors import InvalidOptionError
from tests.engine.models import model_directory
from tests.models.random_models import prompt

PROMPTS = [prompt(length, seed=length) for length in (1, 17, 40, 16, 33, 5)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9, logprobs=3, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.9, seed=1, max_tokens=9, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.2, logprobs=1, ignore_eos=True),
    SamplingParams(temperature=1.1, top_k=9, seed=2, max_tokens=5, logprobs=1, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=1, logprobs=1, ignore_eos=True),
]
SMALL = dict(device="cpu", max_model_len=64, batch_invariant=True)
NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def scores(output):
    """Tokens and every log-probability of a request's output, to the last bit."""
    return [
        (named and {token: one.logprob for token, one in named.items()})
        for named in (output.prompt_logprobs or []) + output.outputs[0].logprobs
    ] + output.outputs[0].token_ids


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def alone(request):
    """(dtype, the scores of each request alone)."""
    with LLM(model_directory("small"), dtype=request.param, **SMALL) as llm:
        return request.param, [scores(llm.generate([one], params)[0]) for one, params in zip(PROMPTS, PARAMS, strict=True)]


COMPANIES = dict(
    chosen=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=8),
    budget=st.sampled_from([6, 7, 16, 64]),
    policy=st.sampled_from(SCHEDULING_POLICIES),
    drafts=st.booleans(),
    prefixes=st.booleans(),
    block_size=st.sampled_from([3, 16]),
)


@settings(max_examples=6, deadline=None)
@given(**COMPANIES)
def test_any_company_any_schedule(alone, chosen, budget, policy, drafts, prefixes, block_size):
    dtype, expected = alone
    options = SMALL | dict(
        dtype=dtype, max_num_batched_tokens=budget, max_num_seqs=5, scheduling_policy=policy, enable_prefix_caching=prefixes,
        block_size=block_size, speculative_config=NGRAMS if drafts else None,
    )  # fmt: skip
    with LLM(model_directory("small"), **options) as llm:
        found = llm.generate([PROMPTS[i] for i in chosen], [PARAMS[i] for i in chosen])
    assert [scores(output) for output in found] == [expected[i] for i in chosen]


def test_the_option_changes_a_score_by_rounding_alone():
    found = []
    for batch_invariant in (True, False):
        with LLM(model_directory("small"), **(SMALL | dict(dtype="float32", batch_invariant=batch_invariant))) as llm:
            found.append(llm.logits(PROMPTS[2]))
    ours, theirs = found
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    assert not np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch_invariant": 1}, "batch_invariant=1 is not allowed: batch_invariant is True or False"),
        ({"kernel_variants": {"matmul": "tiled"}}, "kernel_variants=.* is not allowed: .* None with batch_invariant=True"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not allowed: tensor_parallel_size is 1 with batch_invariant=True"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not allowed: pipeline_parallel_size is 1 with batch_invariant=True"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8' is not allowed: kv_cache_dtype is \"auto\" with batch_invariant=True"),
    ],
)
def test_what_excludes_it_is_refused_by_name(options, words):
    with pytest.raises(InvalidOptionError, match=words):
        LLM(model_directory("small"), **(SMALL | options))
