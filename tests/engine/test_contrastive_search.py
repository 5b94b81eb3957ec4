"""Contrastive search against equation 5 of Su et al., computed in float64 from transformers' hidden states."""

import numpy as np
import pytest
import torch

from minllm import LLM, ContrastiveSearchParams, SamplingParams
from minllm.errors import InvalidRequestError, OutOfMemoryError
from tests.engine.checks import tokens_of
from tests.engine.models import model_directory, transformers_model
from tests.models.random_models import prompt


def expected_tokens(family, token_ids, alpha, top_k, count):
    """Every candidate's whole text is computed anew."""

    def computed(tokens):
        with torch.no_grad():
            found = transformers_model(family)(torch.tensor([tokens]), output_hidden_states=True)
        return found.logits[0, -1].double().softmax(0).numpy(), found.hidden_states[-1][0].double().numpy()

    tokens = list(token_ids)
    for _ in range(count):
        probabilities, _ = computed(tokens)
        scores = {}
        for token_id in np.argsort(-probabilities)[:top_k].tolist():
            *before, last = computed([*tokens, token_id])[1]
            cosines = [last @ one / np.sqrt((last @ last) * (one @ one)) for one in before]
            scores[token_id] = (1 - alpha) * probabilities[token_id] - alpha * max(cosines)
        tokens.append(max(scores, key=scores.get))
    return tokens[len(token_ids) :]


@pytest.mark.covering("family", "alpha + top_k")
@pytest.mark.parametrize("alpha, top_k", [(0.6, 4), (0.05, 9), (1.0, 3)])
@pytest.mark.parametrize("family", ["llama3", "mistral", "gpt2"])
def test_it_is_the_papers_equation(family, alpha, top_k):
    prompts = [prompt(length) for length in (1, 15, 30)]
    with LLM(model_directory(family), device="cpu", dtype="float32", max_model_len=64, max_num_batched_tokens=16) as llm:
        outputs = llm.contrastive_search(prompts, ContrastiveSearchParams(alpha, top_k, max_tokens=12, ignore_eos=True))
        assert llm.engine.cache_policy.usage().allocated == 0
    assert tokens_of(outputs) == [expected_tokens(family, token_ids, alpha, top_k, 12) for token_ids in prompts]


@pytest.mark.parametrize("options", [
    {"block_size": 3}, {"enable_prefix_caching": True}, {"kv_cache_policy": "contiguous"}, {"kv_cache_policy": "virtual"},
], ids=str)  # fmt: skip
def test_candidates_share_blocks_in_every_cache(llm, options):
    params = ContrastiveSearchParams(max_tokens=20, ignore_eos=True)
    expected = tokens_of(llm.contrastive_search(prompt(30), params))
    with LLM(model_directory("small"), device="cpu", max_model_len=128, max_num_seqs=8, **options) as other:
        for _ in range(2):
            assert tokens_of(other.contrastive_search(prompt(30), params)) == expected
        other.engine.cache_policy.check()
        assert other.engine.cache_policy.usage().allocated == 0


def test_without_a_penalty_it_is_greedy_and_ends_as_requests_do(llm, monkeypatch):
    greedy = llm.generate("def f(", SamplingParams(temperature=0, max_tokens=9))[0].outputs[0]
    [output] = llm.contrastive_search("def f(", ContrastiveSearchParams(0.0, 3, max_tokens=9))
    assert output.outputs[0] == greedy and output.finished and output.metrics.generated_tokens == 9
    end = greedy.token_ids[3]
    monkeypatch.setattr(llm.engine, "eos_token_ids", frozenset([end]))
    ended = llm.contrastive_search("def f(", ContrastiveSearchParams(0.0, 3, max_tokens=9))[0].outputs[0]
    assert ended.token_ids == greedy.token_ids[: greedy.token_ids.index(end) + 1] and ended.finish_reason == "stop"


def test_it_runs_while_a_stream_is_open(llm):
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    params = ContrastiveSearchParams(max_tokens=8)
    alone, text = llm.contrastive_search(prompt(9), params), llm.generate(prompt(12), greedy)[0].outputs[0].text
    with llm.stream(prompt(12), greedy) as stream:
        first = next(stream)
        assert tokens_of(llm.contrastive_search(prompt(9), params)) == tokens_of(alone)
        assert first + "".join(stream) == text


def test_forks_without_room_free_everything(monkeypatch):
    monkeypatch.setattr("minllm.engine.build.memory_budget.MAX_HOST_BYTES", 66_700)
    with LLM(model_directory("small"), device="cpu", max_model_len=64) as llm:
        with pytest.raises(OutOfMemoryError, match="a candidate of a contrastive search"):
            llm.contrastive_search(prompt(40), ContrastiveSearchParams(top_k=20))
        assert llm.engine.cache_policy.usage().allocated == 0
        llm.engine.cache_policy.check()


@pytest.mark.parametrize("name, value", [("penalty_alpha", 1.1), ("penalty_alpha", True), ("top_k", 0), ("top_k", 65), ("max_tokens", 0)])
def test_wrong_parameters_are_named(name, value):
    with pytest.raises(InvalidRequestError, match=f"{name}={value!r} is not allowed"):
        ContrastiveSearchParams(**{name: value})


def test_what_it_cannot_do_is_refused(llm):
    with pytest.raises(InvalidRequestError, match="is not a ContrastiveSearchParams"):
        llm.contrastive_search(prompt(3), SamplingParams())
    options = {"kv_cache_dtype": "kivi_int4", "kv_cache_residual_window": 32}
    with LLM(model_directory("small"), device="cpu", max_model_len=64, **options) as other:
        with pytest.raises(InvalidRequestError, match="without residual windows: set kv_cache_residual_window=0"):
            other.contrastive_search(prompt(3))
