"""No schedule changes a token: policies, chunk sizes, company, preemption and caches, in float32, token for token."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.engine.options import PREEMPTIONS, SCHEDULING_POLICIES
from minllm.errors import OutOfMemoryError
from tests.engine.checks import BLOCK_BYTES, tokens_of
from tests.engine.models import model_directory, transformers_greedy
from tests.models.random_models import prompt

LENGTHS = [(1, 20), (17, 12), (70, 9), (16, 20), (33, 20), (5, 1)]  # (prompt, max_tokens)
PROMPTS = [prompt(length, seed=length) for length, _ in LENGTHS]
GREEDY = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True) for _, tokens in LENGTHS]
SAMPLED = [
    SamplingParams(temperature=1.0, max_tokens=20, seed=1, ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=30, max_tokens=12, seed=2, ignore_eos=True, repetition_penalty=1.2),
    SamplingParams(temperature=1.2, top_p=0.9, max_tokens=9, seed=3, ignore_eos=True, logit_bias={7: 4.0}),
    SamplingParams(temperature=1.0, max_tokens=20, seed=4, ignore_eos=True, frequency_penalty=0.5, min_p=0.01),
    SamplingParams(temperature=0.9, max_tokens=20, seed=5, ignore_eos=True, n=3),
    SamplingParams(temperature=1.0, max_tokens=1, seed=6, ignore_eos=True),
]
SMALL = dict(device="cpu", max_model_len=128)


@functools.cache
def transformers_tokens():
    return [transformers_greedy("small", token_ids, tokens) for token_ids, (_, tokens) in zip(PROMPTS, LENGTHS, strict=True)]


@pytest.fixture(scope="module")
def sampled_alone(llm):
    """The tokens of the sampled requests, each by itself."""
    return [tokens for token_ids, params in zip(PROMPTS, SAMPLED, strict=True) for tokens in tokens_of(llm.generate([token_ids], params))]


def check(llm, sampled):
    """The requests of each kind, then all of them together, when a prefix cache knows the prompts."""
    assert tokens_of(llm.generate(PROMPTS, GREEDY)) == transformers_tokens()
    assert tokens_of(llm.generate(PROMPTS, SAMPLED)) == sampled
    assert tokens_of(llm.generate(PROMPTS * 2, GREEDY + SAMPLED)) == transformers_tokens() + sampled
    llm.engine.cache_policy.check()
    assert llm.engine.cache_policy.usage().allocated == 0


@pytest.mark.covering("budget", "policy")
@pytest.mark.parametrize("budget", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies_and_chunks(sampled_alone, policy, budget):
    with LLM(model_directory("small"), scheduling_policy=policy, max_num_batched_tokens=budget, **SMALL) as llm:
        check(llm, sampled_alone)


CACHES = {
    "paged": {},
    "hash": dict(enable_prefix_caching="hash"),
    "radix": dict(enable_prefix_caching="radix"),
    "virtual": dict(kv_cache_policy="virtual", max_num_seqs=3),
    "contiguous": dict(kv_cache_policy="contiguous", max_num_seqs=3),
}


@pytest.mark.covering("cache", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("cache", CACHES)
def test_caches(sampled_alone, cache, policy):
    with LLM(model_directory("small"), scheduling_policy=policy, max_num_batched_tokens=24, **CACHES[cache], **SMALL) as llm:
        check(llm, sampled_alone)


@pytest.mark.covering("preemption + cache", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("cache", ["paged", "radix"])
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_preemption(sampled_alone, preemption, cache, policy):
    """Nine blocks of 16 for requests that need 20 at a time."""
    options = dict(preemption=preemption, scheduling_policy=policy, kv_cache_memory_bytes=9 * BLOCK_BYTES, swap_space_bytes=9 * BLOCK_BYTES)
    with LLM(model_directory("small"), **options, **CACHES[cache], **SMALL) as llm:
        check(llm, sampled_alone)
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("options", [dict(kv_cache_policy="virtual", max_num_seqs=4), dict(block_size=3)], ids=["virtual", "small blocks"])
def test_preemption_in_other_caches(sampled_alone, options):
    with LLM(model_directory("small"), kv_cache_memory_bytes=14 * BLOCK_BYTES, **options, **SMALL) as llm:
        check(llm, sampled_alone)


@pytest.mark.covering("kv_cache_dtype + window", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("kv_cache_dtype, window", [("int8", 0), ("int8", 32), ("kivi_int4", 32), ("kivi_int4", 64)])
def test_quantised_caches(kv_cache_dtype, window, policy):
    """Tokens do not depend on company. Prompts are computed whole: a chunk reads earlier ones as they are cached, which changes numbers."""
    options = dict(kv_cache_dtype=kv_cache_dtype, kv_cache_residual_window=window, scheduling_policy=policy, **SMALL)
    with LLM(model_directory("small"), **options) as llm:
        alone = [tokens for one, params in zip(PROMPTS, GREEDY, strict=True) for tokens in tokens_of(llm.generate([one], params))]
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == alone
        sampled = [tokens for one, params in zip(PROMPTS, SAMPLED, strict=True) for tokens in tokens_of(llm.generate([one], params))]
        assert tokens_of(llm.generate(PROMPTS, SAMPLED)) == sampled
        with LLM(model_directory("small"), max_num_seqs=2, **options) as other:
            assert tokens_of(other.generate(PROMPTS, GREEDY)) == alone


@pytest.mark.covering("budget", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_chunks_and_preemption_with_a_quantised_cache(policy, budget):
    """Without a residual window every query reads what is cached, so that neither chunks nor preemption change a token."""
    options = dict(kv_cache_dtype="int8", scheduling_policy=policy, **SMALL)
    with LLM(model_directory("small"), **options) as llm:
        greedy, sampled = tokens_of(llm.generate(PROMPTS, GREEDY)), tokens_of(llm.generate(PROMPTS, SAMPLED))
        block_bytes = llm.engine.cache.shape.bytes_per_block
    small = dict(max_num_batched_tokens=budget, preemption="swap" if budget == 7 else "recompute", kv_cache_memory_bytes=9 * block_bytes)
    with LLM(model_directory("small"), enable_prefix_caching=budget == 16, swap_space_bytes=9 * block_bytes, **small, **options) as llm:
        for _ in range(2):
            assert tokens_of(llm.generate(PROMPTS, GREEDY)) == greedy and tokens_of(llm.generate(PROMPTS, SAMPLED)) == sampled
        assert budget < 64 or llm.llm_engine.stats().num_preemptions > 0, "with less they come one after the other"


@pytest.mark.covering("kv_cache_dtype", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("kv_cache_dtype", ["kivi_int4", "int8"])
def test_a_residual_window_in_a_tiny_cache(kv_cache_dtype, policy):
    """Rings come and go with slots. What is computed again reads unquantised keys that decodes read as codes, so later tokens may differ.

    Requests that are not preempted get the tokens that they get alone, and every run is like the one before.
    """
    options = dict(kv_cache_dtype=kv_cache_dtype, kv_cache_residual_window=32, block_size=32, max_num_seqs=4, **SMALL)
    options |= dict(scheduling_policy=policy)
    prompts = [prompt(30, seed=i) for i in range(6)]  # a block each, and a second one after two tokens
    with LLM(model_directory("small"), **options) as llm:
        alone = [tokens for one in prompts for tokens in tokens_of(llm.generate([one], GREEDY[0]))]
        shape, room = llm.engine.cache.shape, llm.engine.cache.room
    with LLM(model_directory("small"), kv_cache_memory_bytes=room.bytes(shape) + 5 * shape.bytes_per_block, **options) as llm:
        assert llm.engine.cache_policy.num_blocks == 5
        found = []
        for _ in range(2):
            sequences = [sequence for [sequence] in llm._requests(prompts, GREEDY[0])]
            for sequence in sequences:
                llm.llm_engine.core.add(sequence)
            llm.llm_engine.core.run(sequences)
            found.append([sequence.output_token_ids for sequence in sequences])
        assert found[0] == found[1] and list(map(len, found[0])) == [20] * 6
        for sequence, tokens, expected in zip(sequences, found[0], alone, strict=True):
            assert sequence.num_preemptions or tokens == expected
        assert llm.llm_engine.stats().num_preemptions > 0 and llm.engine.cache_policy.usage().allocated == 0


def test_dropped_requests_have_an_error_and_the_others_their_tokens():
    options = dict(preemption="drop", kv_cache_memory_bytes=9 * BLOCK_BYTES)
    with LLM(model_directory("small"), **options, **SMALL) as llm:
        engine = llm.llm_engine
        for number, (token_ids, params) in enumerate(zip(PROMPTS, GREEDY, strict=True)):
            engine.add_request(str(number), token_ids, params)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
        dropped = [output for output in outputs.values() if output.error is not None]
        assert len(outputs) == len(PROMPTS) and 0 < len(dropped) < len(PROMPTS)
        assert all(isinstance(output.error, OutOfMemoryError) and output.outputs[0].finish_reason == "error" for output in dropped)
        for number, expected in enumerate(transformers_tokens()):
            found = outputs[str(number)].outputs[0].token_ids
            assert found == expected[: len(found)] and (outputs[str(number)].error is not None or len(found) == len(expected))
        assert llm.engine.cache_policy.usage().allocated == 0
        with pytest.raises(OutOfMemoryError, match='preemption="drop" ends such requests'):
            llm.generate(PROMPTS, GREEDY)
        assert llm.engine.cache_policy.usage().allocated == 0


@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_perplexity_is_unchanged_while_others_run(llm, policy):
    with LLM(model_directory("small"), scheduling_policy=policy, max_num_batched_tokens=16, **SMALL) as other:
        expected = llm.perplexity(prompt(120), window=64, stride=32)
        with other.stream("def f(x):", GREEDY[0]) as stream:
            next(stream)
            assert other.perplexity(prompt(120), window=64, stride=32) == pytest.approx(expected, rel=1e-5)
            list(stream)
        assert other.perplexity(prompt(120), window=64, stride=32) == pytest.approx(expected, rel=1e-5)


ARRIVAL = st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(-1, 1), st.none() | st.integers(0, 15))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arrivals=st.lists(ARRIVAL, min_size=2, max_size=8), policy=st.sampled_from(SCHEDULING_POLICIES),
    preemption=st.sampled_from(PREEMPTIONS), blocks=st.integers(8, 14),
    budget=st.sampled_from([1, 7, 16, 64]), prefixes=st.sampled_from([False, "hash", "radix"]),
)  # fmt: skip
def test_requests_that_come_and_go(sampled_alone, arrivals, policy, preemption, blocks, budget, prefixes):
    """(request, step of its arrival, priority, steps until it is aborted): who is not disturbed gets the tokens that he gets alone."""
    first = [sum(params.n for params in SAMPLED[:number]) for number in range(len(SAMPLED))]
    options = dict(
        scheduling_policy=policy, preemption=preemption, kv_cache_memory_bytes=blocks * BLOCK_BYTES, swap_space_bytes=5 * BLOCK_BYTES,
        max_num_batched_tokens=budget, enable_prefix_caching=prefixes, max_num_seqs=4,
    )  # fmt: skip
    with LLM(model_directory("small"), **options, **SMALL) as llm:
        engine, outputs, step = llm.llm_engine, {}, 0
        while step <= 27 or engine.has_unfinished_requests():
            for number, (which, arrival, priority, aborted) in enumerate(arrivals):
                if arrival == step:
                    engine.add_request(str(number), PROMPTS[which], SAMPLED[which], priority=priority)
                if aborted is not None and arrival + aborted == step:
                    engine.abort_request(str(number))
            outputs |= {output.request_id: output for output in engine.step()}
            llm.engine.cache_policy.check()
            step += 1
        assert llm.engine.cache_policy.usage().allocated == 0 and engine.stats().num_running == engine.stats().num_waiting == 0
    for number, (which, _, _, aborted) in enumerate(arrivals):
        assert str(number) in outputs or aborted is not None
        for completion in outputs[str(number)].outputs if str(number) in outputs else ():
            expected = sampled_alone[first[which] + completion.index]
            assert completion.token_ids == expected[: len(completion.token_ids)]
            if completion.finish_reason == "length":
                assert completion.token_ids == expected
            else:
                assert aborted is not None or (preemption == "drop" and completion.finish_reason == "error")
