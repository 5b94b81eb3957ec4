"""Speculative decoding changes no token: greedy and sampled text is that of plain decoding, under every schedule and in every cache."""

from dataclasses import replace

import numpy as np
import pytest

from minllm import LLM, BeamSearchParams, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from minllm.errors import InvalidOptionError
from minllm.kernels.speculation.runs import runs_of
from tests.engine.checks import BLOCK_BYTES, tokens_of
from tests.engine.models import model_directory
from tests.engine.test_schedules import SAMPLED
from tests.models.random_models import prompt

SMALL = dict(device="cpu", max_model_len=128, dtype="float32")
LENGTHS = ((5, 9), (30, 20), (17, 12), (60, 20), (1, 20), (40, 1))
PROMPTS = [prompt(length, seed=length) for length, _ in LENGTHS]
GREEDY = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1) for _, tokens in LENGTHS]


def ngrams(drafts=4, longest=3):
    """The option."""
    return {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": longest, "prompt_lookup_min": 1}


class Hints:
    """A DraftSource that knows texts: it drafts how one of them goes on, with mistakes at given places."""

    reads_history, reads_room, draws = True, False, False

    def __init__(self, texts, mistakes=7):
        self.texts, self.mistakes = texts, mistakes

    def copy_blocks(self, copies):
        pass

    def enter(self, slot, token_ids, drafts, machine):
        pass

    def propose(self, slots, batch, state, drafts, kind, chosen):
        counts = np.zeros(len(slots), np.int32)
        for first, _ in runs_of(slots):
            slot = slots[first]
            length = int(state.lengths[slot])
            known = drafts.token_history[slot, :length].tolist()
            rest = next((text[length:] for text in self.texts if text[:length] == known), [])[: drafts.drafts.shape[1]]
            drafts.drafts[slot] = 0
            drafts.drafts[slot, : len(rest)] = [t + ((length + i) % self.mistakes == 0) for i, t in enumerate(rest)]
            counts[first] = len(rest)
        return counts


def texts_of(outputs):
    """Prompt and output of each completion."""
    return [output.prompt_token_ids + completion.token_ids for output in outputs for completion in output.outputs]


def everything(outputs):
    """Tokens, and log-probabilities as far as they are there."""
    return [
        (completion.token_ids, [sorted(named) for named in completion.logprobs or ()])
        for output in outputs
        for completion in output.outputs
    ]


@pytest.fixture(scope="module")
def plain():
    """The outputs without speculation."""
    with LLM(model_directory("small"), **SMALL) as llm:
        return llm.generate(PROMPTS, GREEDY), llm.generate(PROMPTS, SAMPLED)


def check(plain, **options):
    """All requests together, with n-grams and with hints; the second time a prefix cache knows the prompts. Returns the stats."""
    greedy, sampled = plain
    with LLM(model_directory("small"), **(SMALL | dict(speculative_config=ngrams()) | options)) as llm:
        for _ in range(2):
            assert everything(llm.generate(PROMPTS, GREEDY)) == everything(greedy)
            assert everything(llm.generate(PROMPTS, SAMPLED)) == everything(sampled)
            llm.engine.runner.speculator.source = Hints(texts_of(greedy + sampled))
        llm.engine.cache_policy.check()
        assert llm.engine.cache_policy.usage().allocated == 0
        return llm.llm_engine.stats()


@pytest.mark.covering("budget", "policy")
@pytest.mark.parametrize("budget", [6, 7, 16, 64, 2048])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies_and_chunks(plain, policy, budget):
    stats = check(plain, scheduling_policy=policy, max_num_batched_tokens=budget)
    assert stats.spec_decode_num_accepted_tokens > 0


CACHES = {
    "hash": dict(enable_prefix_caching="hash"),
    "radix": dict(enable_prefix_caching="radix"),
    "virtual": dict(kv_cache_policy="virtual", max_num_seqs=3),
    "contiguous": dict(kv_cache_policy="contiguous", max_num_seqs=3),
    "small blocks": dict(block_size=3),
    "limit": dict(length_prediction="limit", kv_cache_memory_bytes=9 * BLOCK_BYTES),
}


@pytest.mark.covering("cache", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("cache", CACHES)
def test_caches(plain, cache, policy):
    check(plain, scheduling_policy=policy, max_num_batched_tokens=24, **CACHES[cache])


@pytest.mark.covering("preemption + cache", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("cache", ["small blocks", "radix"])
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_preemption(plain, preemption, cache, policy):
    """Room for 144 tokens, for requests that need 300 at a time."""
    options = dict(preemption=preemption, scheduling_policy=policy, kv_cache_memory_bytes=9 * BLOCK_BYTES, swap_space_bytes=9 * BLOCK_BYTES)
    assert check(plain, **options, **CACHES[cache]).num_preemptions > 0


@pytest.mark.parametrize("drafts", [1, 2, 8, 64])
def test_any_number_of_drafts(plain, drafts):
    check(plain, speculative_config=ngrams(drafts, longest=1))


def test_a_quantised_cache():
    options = dict(kv_cache_dtype="int8", **SMALL)
    with LLM(model_directory("small"), **options) as llm:
        plain = llm.generate(PROMPTS, GREEDY), llm.generate(PROMPTS, SAMPLED)
    check(plain, kv_cache_dtype="int8")


def test_drafts_that_are_right_save_steps(plain):
    greedy, _ = plain
    params = replace(GREEDY[3], logprobs=None)
    with LLM(model_directory("small"), speculative_config=ngrams(4), **SMALL) as llm:
        llm.engine.runner.speculator.source = Hints(texts_of(greedy), mistakes=10**6)
        assert tokens_of(llm.generate(PROMPTS[3], params)) == [greedy[3].outputs[0].token_ids]
        stats = llm.llm_engine.stats()
    assert stats.num_steps == 1 + 4, "the first token, and 19 tokens of which each step yields 5"
    assert (stats.spec_decode_num_drafts, stats.spec_decode_num_draft_tokens, stats.spec_decode_num_accepted_tokens) == (4, 15, 15)
    assert stats.spec_decode_num_accepted_tokens_per_pos == (4, 4, 4, 3)
    assert stats.spec_decode_acceptance_rate == 1.0 and stats.spec_decode_mean_acceptance_length == 1 + 15 / 4


def test_prefix_caching_counts_accepted_tokens_only():
    """A block that rejected drafts had filled is not found by a prompt that begins with them."""
    first = prompt(14, seed=1)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(model_directory("small"), **SMALL) as llm:
        right = texts_of(llm.generate([first], params))[0]
    wrong = right[:15] + [(t + 1) % 100 for t in right[15:]]
    options = dict(speculative_config=ngrams(8), enable_prefix_caching=True, **SMALL)
    with LLM(model_directory("small"), **options) as llm:
        llm.engine.runner.speculator.source = Hints([wrong], mistakes=10**6)
        assert texts_of(llm.generate([first], params))[0] == right
        assert llm.llm_engine.stats().spec_decode_num_draft_tokens > 0
        assert llm.generate([wrong], params)[0].num_cached_tokens == 0
        assert llm.generate([right], params)[0].num_cached_tokens == 16


def test_requests_that_exclude_drafts_run_beside(plain):
    """Beam search, functions of the host, and bad words of several tokens; stop strings and ids end within accepted drafts."""
    greedy, _ = plain
    text = greedy[1].outputs[0]
    stop_id = text.token_ids[7]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logits_processors=[lambda output, logits: -logits]),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=[stop_id]),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=[stop_id], min_tokens=15),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=[text.text[6:8]]),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, bad_words=["def f", "x"]),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, prompt_logprobs=2, logprobs=3),
    ]
    found = []
    for config in (None, ngrams()):
        with LLM(model_directory("small"), speculative_config=config, **SMALL) as llm:
            if config:
                llm.engine.runner.speculator.source = Hints(found[0][2], mistakes=10**6)
            outputs = llm.generate([PROMPTS[1]] * len(params), params)
            completions = [output.outputs[0] for output in outputs]
            [beams] = llm.beam_search([PROMPTS[2]], BeamSearchParams(3, max_tokens=6, ignore_eos=True))
            ended = [(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in completions]
            found.append((ended, [beam.tokens for beam in beams.sequences], texts_of(outputs)))
            assert not config or llm.llm_engine.stats().spec_decode_num_accepted_tokens > 0
            assert llm.engine.cache_policy.usage().allocated == 0
    assert found[0] == found[1]


def test_streams_and_aborts():
    with LLM(model_directory("small"), speculative_config=ngrams(), **SMALL) as llm:
        params = replace(GREEDY[1], logprobs=None)
        text = llm.generate(PROMPTS[1], params)[0].outputs[0].text
        with llm.stream(PROMPTS[1], params) as stream:
            assert "".join(stream) == text
        with llm.stream(PROMPTS[3], replace(params, max_tokens=60)) as stream:
            next(stream)
        assert llm.engine.cache_policy.usage().allocated == 0 and llm.llm_engine.stats().num_running == 0


def test_the_bundled_model_accepts_ngrams():
    text = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n    def"
    params = [SamplingParams(temperature=0, max_tokens=48), SamplingParams(temperature=0.8, seed=3, max_tokens=48)]
    with LLM(device="cpu", dtype="float32") as llm:
        plain = tokens_of(llm.generate([text] * 2, params))
    with LLM(device="cpu", dtype="float32", speculative_config=ngrams()) as llm:
        assert tokens_of(llm.generate([text] * 2, params)) == plain
        stats = llm.llm_engine.stats()
    assert stats.spec_decode_acceptance_rate > 0.1 and stats.num_steps < 48


@pytest.mark.parametrize(
    "config, options, words",
    [
        ("ngram", {}, "speculative_config='ngram' is not allowed: give None or a dictionary such as"),
        ({"method": "ngram"}, {}, "speculative_config needs num_speculative_tokens"),
        ({"num_speculative_token": 3}, {}, "speculative_config has no 'num_speculative_token': did you mean num_speculative_tokens?"),
        (ngrams(0), {}, "num_speculative_tokens=0 is not allowed: num_speculative_tokens is an integer from 1 to 64"),
        (ngrams(True), {}, "num_speculative_tokens=True is not allowed"),
        (ngrams() | {"method": "medusa"}, {}, "method='medusa' is not allowed: method is one of ngram, draft_model, lookahead"),
        (ngrams() | {"prompt_lookup_min": 4}, {}, "prompt_lookup_min=4 is not allowed: prompt_lookup_min is at most prompt_lookup_max=3"),
        (ngrams() | {"prompt_lookup_max": 0}, {}, "prompt_lookup_max=0 is not allowed"),
        (ngrams(7), {"max_num_batched_tokens": 8}, "num_speculative_tokens=7 is .* at most max_num_batched_tokens - 2, here 8 - 2"),
        (ngrams(9), {"max_model_len": 10}, "num_speculative_tokens=9 is not allowed: .* at most max_model_len - 2, here 10 - 2"),
        (
            ngrams(), {"kv_cache_dtype": "int8", "kv_cache_residual_window": 32},
            "speculative_config=.* is not allowed: speculative_config is None with a residual window",
        ),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_by_name(config, options, words):
    with pytest.raises(InvalidOptionError, match=words):
        LLM(model_directory("small"), speculative_config=config, **(dict(device="cpu") | options))


def test_more_drafts_than_the_cache_holds():
    options = dict(device="cpu", block_size=4, kv_cache_memory_bytes=BLOCK_BYTES)
    with pytest.raises(InvalidOptionError, match="num_speculative_tokens=20 is not allowed: the KV cache has room for 16 tokens"):
        LLM(model_directory("small"), speculative_config=ngrams(20), **options)
