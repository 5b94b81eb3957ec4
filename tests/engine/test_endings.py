"""Where a generated text ends: length limits, end of sequence, stop ids and stop strings, and how few tokens there may be."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minllm import LLM, SamplingParams
from minllm.errors import CheckpointError
from tests.engine.models import EOS, byte_level_tokenizer, model_directory, transformers_greedy
from tests.models import random_models
from tests.models.random_models import prompt

PROMPT = prompt(17)


def complete(llm, **options):
    return llm.generate(PROMPT, SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True, **options}))[0].outputs[0]


@pytest.fixture(scope="module")
def free_running(llm):
    """What the model says when nothing stops it."""
    completion = complete(llm)
    assert completion.finish_reason == "length" and len(set(completion.token_ids)) > 12
    return completion


def first_new(token_ids, at_least):
    """The first index from `at_least` on whose token did not occur before it."""
    return next(i for i in range(at_least, len(token_ids)) if token_ids[i] not in token_ids[:i])


@pytest.mark.parametrize("max_tokens", [1, 2, 16, 17])
def test_max_tokens(llm, free_running, max_tokens):
    completion = complete(llm, max_tokens=max_tokens)
    assert completion.token_ids == free_running.token_ids[:max_tokens]
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)


@pytest.mark.parametrize("max_tokens", [None, 10_000])
def test_the_models_context_ends_a_text(max_tokens):
    with LLM(model_directory("small"), device="cpu", max_model_len=40) as llm:
        completion = complete(llm, max_tokens=max_tokens)
        assert len(completion.token_ids) == 40 - len(PROMPT) and completion.finish_reason == "length"
        longest = llm.generate(prompt(39), SamplingParams(temperature=0, max_tokens=max_tokens))[0].outputs[0]
        assert len(longest.token_ids) == 1


def test_generation_reaches_the_last_position_of_the_model():
    """GPT-2 has 160 learned positions: the 160th token is computed, and equals transformers'."""
    with LLM(model_directory("gpt2"), device="cpu") as llm:
        assert llm.max_model_len == 160
        completion = llm.generate(prompt(150), SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0].outputs[0]
    assert completion.token_ids == transformers_greedy("gpt2", prompt(150), 10)


def test_stop_token_ids(llm, free_running):
    at = first_new(free_running.token_ids, 5)
    stop_id = free_running.token_ids[at]
    completion = complete(llm, stop_token_ids=[1, stop_id])
    assert completion.token_ids == free_running.token_ids[: at + 1], "the id that ends the text is among the tokens"
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop_id)
    assert completion.text == llm.tokenizer.decode(free_running.token_ids[:at]), "and not in the text"
    shown = complete(llm, stop_token_ids=[stop_id], include_stop_str_in_output=True)
    assert shown.text == llm.tokenizer.decode(free_running.token_ids[: at + 1])


def test_end_of_sequence_is_the_generation_configs(free_running):
    at = first_new(free_running.token_ids, 3)
    directory = model_directory("small")
    with LLM(directory, device="cpu", max_model_len=64) as llm:
        llm.engine.eos_token_ids = frozenset([free_running.token_ids[at], 1])
        completion = complete(llm, ignore_eos=False)
        assert completion.token_ids == free_running.token_ids[: at + 1]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
        assert complete(llm, ignore_eos=True).token_ids == free_running.token_ids
    assert free_running.token_ids[: at + 1] == transformers_greedy("small", PROMPT, 24, (free_running.token_ids[at],))


def test_min_tokens_bans_what_would_end_the_text(llm, free_running):
    at = first_new(free_running.token_ids, 4)
    stop_id = free_running.token_ids[at]
    completion = complete(llm, stop_token_ids=[stop_id], min_tokens=at + 3)
    assert completion.token_ids[:at] == free_running.token_ids[:at]
    assert stop_id not in completion.token_ids[: at + 3] and len(completion.token_ids) >= at + 3
    assert complete(llm, stop_token_ids=[stop_id], min_tokens=at).token_ids == free_running.token_ids[: at + 1]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens(llm, free_running, include):
    token_texts = [llm.tokenizer.decode([token_id]) for token_id in free_running.token_ids]
    text = free_running.text
    middle = next(i for i in range(4, 20) if all("\ufffd" not in t and len(t) > 1 for t in token_texts[i : i + 2]))
    stop = token_texts[middle][-1] + token_texts[middle + 1][0]
    at = text.index(stop)
    completion = complete(llm, stop=[stop, "never this"], include_stop_str_in_output=include)
    assert completion.text == text[: at + len(stop) * include]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert len(completion.token_ids) < len(free_running.token_ids)


def test_stop_strings_wait_for_min_tokens(llm, free_running):
    stop = free_running.text[3]
    completion = complete(llm, stop=stop, min_tokens=12)
    assert len(completion.token_ids) > 12
    assert completion.text.startswith(llm.tokenizer.decode(free_running.token_ids[:11])[:-1])


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_are_the_models_own(llm, top):
    """Temperature and penalties choose the tokens and leave the log-probabilities alone."""
    completion = complete(llm, logprobs=top, temperature=1.3, seed=1, repetition_penalty=1.5, top_k=50)
    logits = llm.logits(PROMPT + completion.token_ids)[len(PROMPT) - 1 : -1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert len(completion.logprobs) == len(completion.token_ids)
    for row, (token_id, named) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        best = np.argsort(-expected[row])[:top].tolist()
        assert list(named) == best + [token_id] * (token_id not in best)
        for token, logprob in named.items():
            assert logprob.logprob == pytest.approx(expected[row, token], abs=1e-4)
            assert logprob.rank == (expected[row] > expected[row, token]).sum() + 1
            assert logprob.decoded_token == llm.tokenizer.backend.decode([token], skip_special_tokens=False)
    chosen = [expected[row, token_id] for row, token_id in enumerate(completion.token_ids)]
    assert completion.cumulative_logprob == pytest.approx(sum(chosen), abs=1e-3)


def test_a_special_token_has_a_text_among_logprobs(llm):
    prompt_token_ids = [5, llm.tokenizer.backend.token_to_id(EOS)]
    (output,) = llm.generate([prompt_token_ids], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert [logprob.decoded_token for logprob in output.prompt_logprobs[1].values()] == [EOS]


def test_logprobs_of_some_requests_of_a_batch(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, logprobs=top, ignore_eos=True) for n, top in ((2, 3), (9, None), (6, 1))]
    outputs = [output.outputs[0] for output in llm.generate([PROMPT, prompt(4), prompt(30)], params)]
    assert outputs[1].logprobs is None
    for output, top in ((outputs[0], 3), (outputs[2], 1)):
        assert [list(named)[0] for named in output.logprobs] == output.token_ids, "greedy: the likeliest first"
        assert all(len(named) == top for named in output.logprobs)


def test_the_tokenizers_eos_token_ends_a_text_beside_those_that_other_files_name(tmp_path, free_running):
    directory = shutil.copytree(model_directory("small"), tmp_path / "model")
    at = first_new(free_running.token_ids, 5)
    token_id = free_running.token_ids[at]

    def ends(config_eos=None, generation_eos=None):
        for name, eos in (("config.json", config_eos), ("generation_config.json", generation_eos)):
            values = json.loads((directory / name).read_text())
            (directory / name).write_text(json.dumps({**values, "eos_token_id": eos}))
        with LLM(directory, device="cpu") as llm:
            return llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24))[0].outputs[0]

    eos = byte_level_tokenizer().id_to_token(token_id)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    other = random_models.VOCAB_SIZE - 1
    for names in ({}, dict(config_eos=other), dict(generation_eos=[other])):
        completion = ends(**names)
        assert completion.token_ids == free_running.token_ids[: at + 1] and completion.finish_reason == "stop", names
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": byte_level_tokenizer().id_to_token(other)}))
    assert ends().finish_reason == "length", "no file names it"
    for names in (dict(config_eos=token_id), dict(generation_eos=[token_id], config_eos=other)):
        assert ends(**names).token_ids == free_running.token_ids[: at + 1], names
    assert ends(config_eos=token_id, generation_eos=other).finish_reason == "length", "generation_config.json's come before config.json's"


def test_weights_that_are_not_finite_are_loaded_if_allowed(tmp_path):
    directory = shutil.copytree(model_directory("small"), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"][0] = np.nan
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="model.norm.weight.*allow_nonfinite_weights=True"):
        LLM(directory, device="cpu")
    with LLM(directory, device="cpu", allow_nonfinite_weights=True) as llm:
        assert np.isnan(llm.logits(PROMPT)).all()
