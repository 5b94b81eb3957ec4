"""The parameters of a request from the call to the tokens, against transformers or a loop over whole forwards."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.errors import InvalidRequestError
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory, transformers_model
from tests.models.random_models import prompt

SMALL = dict(device="cpu", max_model_len=128)


def choose(llm, token_ids, count, change):
    """Greedy tokens of whole forwards, one by one, after `change(output, logits)`."""
    output = []
    for _ in range(count):
        logits = llm.logits(token_ids + output)[-1].astype(np.float64)
        output.append(int(change(output, logits).argmax()))
    return output


def greedy(llm, token_ids, **params):
    """The tokens of one greedy request of 12 tokens."""
    params = dict(temperature=0, max_tokens=12, ignore_eos=True) | params
    return llm.generate([token_ids], SamplingParams(**params))[0].outputs[0].token_ids


def transformers_log_softmax(token_ids):
    """float64 [tokens, vocab]"""
    import torch

    with torch.no_grad():
        logits = transformers_model("small")(torch.tensor([token_ids])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()


def test_logit_bias(llm):
    def biased(output, logits):
        logits[[5, 900]] += [3.0, 5.5]
        logits[free[0]] -= 100
        return logits

    free = greedy(llm, prompt(9))
    found = greedy(llm, prompt(9), logit_bias={5: 3.0, 900: 5.5, free[0]: -100})
    assert found == choose(llm, prompt(9), 12, biased) != free


def test_allowed_token_ids(llm):
    allowed = [3, 77, 500, 1002]

    def only(output, logits):
        return np.where(np.isin(np.arange(len(logits)), allowed), logits, -np.inf)

    assert greedy(llm, prompt(9), allowed_token_ids=allowed) == choose(llm, prompt(9), 12, only)
    sampled = SamplingParams(temperature=2.0, max_tokens=60, ignore_eos=True, allowed_token_ids=allowed, seed=1, n=3)
    outputs = llm.generate([prompt(9)], sampled)[0].outputs
    assert {token for one in outputs for token in one.token_ids} == set(allowed)


@pytest.mark.parametrize("speculates", [False, True])
def test_bad_words(speculates):
    """Words of the free text, as a token or in pieces: the likeliest text without them comes out, beside an undisturbed neighbour."""
    options = dict(speculative_config=dict(method="ngram", num_speculative_tokens=3)) if speculates else {}
    with LLM(model_directory("small"), **SMALL, **options) as llm:
        texts = [llm.tokenizer.decode([token]) for token in range(llm.engine.model.config.vocab_size)]
        free = greedy(llm, prompt(9))
        text = llm.tokenizer.decode(free)
        words = [text[2:4], text[9:14], "e", f"  {text[16:19].lstrip() or 'x'}"]

        def without(output, logits):
            before = llm.tokenizer.decode(output)
            banned = [any(word.lstrip() in before + one for word in words) for one in texts]
            return np.where(banned, -np.inf, logits)

        params = [SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, bad_words=given) for given in (words, None)]
        found, neighbour = [output.outputs[0] for output in llm.generate([prompt(9)] * 2, params)]
        assert found.token_ids == choose(llm, prompt(9), 12, without) and neighbour.token_ids == free
        assert not any(word.lstrip() in found.text for word in words) and all(word.lstrip() in text for word in words[:2])


def test_a_bad_word_without_tokens_is_none(llm):
    with pytest.raises(InvalidRequestError, match="bad_words"):
        SamplingParams(bad_words=["  "])


def test_logits_processors_see_the_output_and_run_in_order(llm):
    seen = []

    def first(output_token_ids, logits):
        seen.append(list(output_token_ids))
        assert logits.shape == (1003,) and logits.dtype == np.float32
        return logits * 0

    def second(output_token_ids, logits):
        assert not logits.any()
        logits[len(output_token_ids)] = 1.0
        return logits

    found = greedy(llm, prompt(9), max_tokens=5, logits_processors=[first, second])
    assert found == [0, 1, 2, 3, 4] and seen == [list(range(count)) for count in range(5)]


def test_a_processor_that_raises_ends_its_step_and_leaves_nothing(llm):
    def fail(output_token_ids, logits):
        raise ZeroDivisionError("a processor of the caller's")

    with pytest.raises(ZeroDivisionError, match="of the caller's"):
        greedy(llm, prompt(9), logits_processors=[fail])
    assert len(greedy(llm, prompt(9))) == 12


@pytest.mark.parametrize("change", ["logits_processors", "bad_words", "logit_bias", "temperature"])
def test_log_probabilities_are_those_before_all_options(llm, change):
    """With processors of the host's too."""
    options = dict(
        logits_processors=[lambda output, logits: np.roll(logits, 1)], bad_words=["ab cd ef", "x"], logit_bias={7: 50.0}, temperature=1.5
    )  # fmt: skip
    params = SamplingParams(**dict(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3, seed=1) | {change: options[change]})
    completion = llm.generate([prompt(9)], params)[0].outputs[0]
    expected = transformers_log_softmax(prompt(9) + completion.token_ids)[8:]
    for row, (token, named) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        assert list(named)[:3] == np.argsort(-expected[row], kind="stable")[:3].tolist()
        for one, logprob in named.items():
            assert logprob.logprob == pytest.approx(expected[row, one], abs=1e-4)
            assert logprob.rank == 1 + (expected[row] > expected[row, one]).sum()
        assert token in named
    total = sum(named[token].logprob for token, named in zip(completion.token_ids, completion.logprobs, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total)


def check_prompt_logprobs(output, token_ids, top):
    """Against transformers."""
    expected = transformers_log_softmax(token_ids)
    assert len(output.prompt_logprobs) == len(token_ids) and output.prompt_logprobs[0] is None
    for position, named in enumerate(output.prompt_logprobs[1:], start=1):
        row, token = expected[position - 1], token_ids[position]
        assert list(named)[:top] == np.argsort(-row, kind="stable")[:top].tolist() and token in named
        assert len(named) == top + (token not in list(named)[:top])
        for one, logprob in named.items():
            assert logprob.logprob == pytest.approx(row[one], abs=1e-4) and logprob.rank == 1 + (row > row[one]).sum()


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("policy", ["split_fuse", "in_flight", "static"])
def test_prompt_logprobs_in_chunks(budget, policy):
    """With company, among it requests with their own, and without tokens to generate."""
    prompts = [prompt(40), prompt(17, seed=1), prompt(1), prompt(33, seed=2), prompt(9)]
    common = dict(temperature=0, ignore_eos=True)
    params = [
        SamplingParams(max_tokens=4, prompt_logprobs=2, logprobs=1, **common), SamplingParams(max_tokens=0, prompt_logprobs=0, **common),
        SamplingParams(max_tokens=3, prompt_logprobs=1, **common), SamplingParams(max_tokens=5, logprobs=4, **common),
        SamplingParams(max_tokens=0, **common),
    ]  # fmt: skip
    with LLM(model_directory("small"), max_num_batched_tokens=budget, scheduling_policy=policy, **SMALL) as llm:
        outputs = llm.generate(prompts, params)
        assert llm.engine.cache_policy.usage().allocated == 0
    for output, token_ids, one in zip(outputs, prompts, params, strict=True):
        assert output.finished and len(output.outputs[0].token_ids) == one.max_tokens and output.outputs[0].finish_reason == "length"
        if one.prompt_logprobs is None:
            assert output.prompt_logprobs is None
        else:
            check_prompt_logprobs(output, token_ids, one.prompt_logprobs)


def test_prompt_logprobs_of_a_prompt_that_was_preempted():
    """A long answer pushes it out while it is computed, again and again; each position is reported once."""
    options = dict(max_num_batched_tokens=8, kv_cache_memory_bytes=8 * BLOCK_BYTES)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    scored = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    with LLM(model_directory("small"), **options, **SMALL) as llm:
        engine = llm.llm_engine
        engine.add_request("long", prompt(20), long)
        outputs = {}
        for step in range(200):
            if step == 40:  # four of eight blocks are left for its prompt, of which the other one needs the next before it is computed
                engine.add_request("scored", prompt(60), scored)
            outputs |= {output.request_id: output for output in engine.step()}
        assert not engine.has_unfinished_requests() and engine.stats().num_preemptions > 0
    check_prompt_logprobs(outputs["scored"], prompt(60), 1)


@pytest.mark.parametrize("prefixes", ["hash", "radix"])
def test_prompt_logprobs_of_a_cached_prompt(prefixes):
    """Every position is computed although the cache knows the prompt, and again for each completion's request."""
    params = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=3, prompt_logprobs=1, ignore_eos=True)
    with LLM(model_directory("small"), enable_prefix_caching=prefixes, **SMALL) as llm:
        for _ in range(2):
            llm.generate([prompt(40)], SamplingParams(max_tokens=1))
            check_prompt_logprobs(llm.generate([prompt(40)], params)[0], prompt(40), 1)


@pytest.mark.parametrize(("max_num_seqs", "budget", "prefixes", "length"), [(1, 256, "hash", 33), (2, 8, "radix", 20), (2, 8, False, 9)])
def test_prompt_logprobs_of_several_completions(max_num_seqs, budget, prefixes, length):
    """Completions that find no slot wait, and then find the prompt in the prefix cache, or compute it again."""
    options = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, enable_prefix_caching=prefixes, block_size=4)
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    with LLM(model_directory("small"), **SMALL, **options) as llm:
        output = llm.generate([prompt(length)], params)[0]
    check_prompt_logprobs(output, prompt(length), 1)
    assert [len(one.token_ids) for one in output.outputs] == [2] * 3


def test_prompt_logprobs_of_a_long_prompt(monkeypatch):
    monkeypatch.setattr("minllm.engine.requests.sequence.LONGEST_SCORED_CHUNK", 32)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    with LLM(model_directory("small"), **SMALL) as llm:
        check_prompt_logprobs(llm.generate([prompt(100)], params)[0], prompt(100), 1)
        assert llm.llm_engine.stats().num_steps == 4 + 1


@pytest.mark.parametrize("n", [1, 3])
def test_requests_without_new_tokens_fill_the_context_and_only_compute(llm, n):
    params = SamplingParams(max_tokens=0, temperature=1.0, n=n)
    [output] = llm.generate([prompt(256)], params)
    assert output.finished and [one.token_ids for one in output.outputs] == [[]] * n
    assert {(one.text, one.finish_reason) for one in output.outputs} == {("", "length")}
    assert output.metrics.generated_tokens == 0 and output.metrics.time_to_first_token is None
    with pytest.raises(InvalidRequestError, match="257 tokens, and max_model_len=256 allows 256"):
        llm.generate([prompt(257)], params)


@pytest.mark.parametrize("n, best_of", [(1, 4), (2, 5), (3, 3)])
def test_best_of_returns_the_likeliest(llm, n, best_of):
    common = dict(temperature=1.0, max_tokens=8, seed=11, ignore_eos=True)
    every = llm.generate([prompt(20)], SamplingParams(n=best_of, logprobs=0, **common))[0].outputs
    [output] = llm.generate([prompt(20)], SamplingParams(n=n, best_of=best_of, **common))
    expected = every if n == best_of else sorted(every, key=lambda one: -one.cumulative_logprob)[:n]
    assert [one.token_ids for one in output.outputs] == [one.token_ids for one in expected]
    assert [one.index for one in output.outputs] == list(range(n)) and all(one.logprobs is None for one in output.outputs)
    if n < best_of:
        assert [one.cumulative_logprob for one in output.outputs] == pytest.approx([one.cumulative_logprob for one in expected])
        assert output.metrics.generated_tokens == best_of * 8


def test_without_text(llm):
    params = dict(temperature=0, max_tokens=12, ignore_eos=True)
    [output] = llm.generate(["def f(x):"], SamplingParams(detokenize=False, **params))
    assert output.outputs[0].text == "" and output.outputs[0].token_ids == greedy(llm, llm.tokenizer.encode("def f(x):"))
    assert list(llm.stream("def f(x):", SamplingParams(detokenize=False, **params))) == []


def test_truncated_prompts_are_scored_as_such(llm):
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1, truncate_prompt_tokens=12, ignore_eos=True)
    [output] = llm.generate([prompt(60)], params)
    assert output.prompt_token_ids == prompt(60)[-12:]
    check_prompt_logprobs(output, prompt(60)[-12:], 1)
