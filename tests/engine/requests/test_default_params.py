"""What a model's files suggest for requests that give no parameters: the tokens are transformers', or a warning names the key."""

import dataclasses
import json
import warnings

import pytest
import torch
import transformers

from minllm import LLM
from minllm.engine.requests.default_params import UNSUGGESTED, default_sampling_params, described, warn_of_the_rest
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import CheckpointError
from minllm.models.generation_config import GenerationConfig, read_generation_config
from tests.engine.models import model_directory, transformers_greedy, transformers_model
from tests.models import random_models

VOCAB = random_models.VOCAB_SIZE
PROMPT = [5, 99, 200, 5, 31]
NEW_TOKENS = 10


@pytest.fixture
def read(tmp_path):
    """read(**keys): the GenerationConfig of a generation_config.json with these keys."""

    def read(**keys):
        (tmp_path / "generation_config.json").write_text(json.dumps(keys))
        return read_generation_config(tmp_path)

    return read


@pytest.fixture(scope="module")
def likely():
    """The tokens of greedy decoding, which the tests ban, punish and reward."""
    return transformers_greedy("small", PROMPT, NEW_TOKENS)


FOLLOWED = {  # name -> function of the likely tokens that returns keys
    "suppress_tokens": lambda likely: dict(suppress_tokens=[*range(300), *likely[:4]]),
    "bad_words_ids": lambda likely: dict(bad_words_ids=[[likely[0]], [likely[2]], [VOCAB - 1]], eos_token_id=likely[2]),
    "sequence_bias": lambda likely: dict(sequence_bias=[[[likely[0]], -3.5], [[likely[3]], -1000.0], [[7], 0.5]]),
    "a ban over a bias": lambda likely: dict(sequence_bias=[[[likely[0]], 1000.0]], suppress_tokens=[likely[0]]),
    "min_new_tokens": lambda likely: dict(min_new_tokens=4, eos_token_id=[likely[1], likely[6]]),
    "max_new_tokens": lambda likely: dict(max_new_tokens=3),
    "repetition_penalty": lambda likely: dict(repetition_penalty=0.2, temperature=0.3, top_p=0.5),
    "eos_token_id": lambda likely: dict(eos_token_id=likely[4]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_keys_that_are_followed_give_transformers_tokens(monkeypatch, llm, read, likely, name):
    keys = dict(do_sample=False, max_new_tokens=NEW_TOKENS) | FOLLOWED[name](likely)
    theirs = transformers.GenerationConfig(**keys, pad_token_id=0)
    with torch.no_grad():
        expected = transformers_model("small").generate(torch.tensor([PROMPT]), generation_config=theirs)[0, len(PROMPT) :].tolist()
    config = read(**keys)
    monkeypatch.setattr(llm.engine, "eos_token_ids", frozenset(config.eos_token_ids))
    ours = llm.generate(PROMPT, default_sampling_params(config, VOCAB))[0].outputs[0]
    assert ours.token_ids == expected and config.not_followed == ()
    assert expected != likely


NOT_FOLLOWED = dict(
    begin_suppress_tokens=[5], forced_bos_token_id=0, forced_eos_token_id=[5], num_beams=4, num_beam_groups=2, guidance_scale=1.5,
    no_repeat_ngram_size=3, encoder_repetition_penalty=1.2, typical_p=0.9, epsilon_cutoff=1e-4, eta_cutoff=1e-4, top_h=0.4, min_length=9,
    penalty_alpha=0.6, num_return_sequences=2, exponential_decay_length_penalty=[5, 1.1], diversity_penalty=0.5, token_healing=True,
    watermarking_config={"bias": 2.0}, dola_layers="high", force_words_ids=[[5]], max_time=3.0, presence_penalty=1.5, key_of_tomorrow="on",
)  # fmt: skip


def test_every_other_key_is_named_in_one_warning(read):
    several = dict(bad_words_ids=[[5, 6], [7]], sequence_bias=[[[5, 6], 1.0]], min_new_tokens=17, max_length=20)
    config = read(**NOT_FOLLOWED, **several)
    with pytest.warns(UserWarning) as found:
        warn_of_the_rest(config, 64)
    (text,) = (str(one.message) for one in found)
    named = [f"{name}={value!r}" for name, value in NOT_FOLLOWED.items()]
    named += ["bad_words_ids of several tokens", "sequence_bias of several tokens", "min_new_tokens=17, above max_new_tokens"]
    named.append("max_length=20")
    assert "generation_config.json sets" in text and all(words in text for words in named)
    assert default_sampling_params(config, VOCAB).min_tokens == 0 and config.suppress_tokens == (7,)


NEUTRAL = dict(
    num_beams=1, num_beam_groups=1, guidance_scale=1.0, no_repeat_ngram_size=0, encoder_repetition_penalty=1.0, typical_p=1.0,
    epsilon_cutoff=0.0, min_length=0, num_return_sequences=1, forced_bos_token_id=None, begin_suppress_tokens=None, token_healing=False,
    transformers_version="5.24.0", pad_token_id=3, bos_token_id=[1], max_length=4096, use_cache=True, cache_implementation="hybrid",
    suppress_tokens=[], bad_words_ids=None, sequence_bias=[], stop_strings=None, min_new_tokens=0,
)  # fmt: skip


def test_keys_that_change_nothing_are_silent(read):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_the_rest(read(**NEUTRAL), 4096)
        warn_of_the_rest(read(max_length=20, max_new_tokens=8), 4096)
    assert default_sampling_params(read(**NEUTRAL), VOCAB) == SamplingParams(**UNSUGGESTED)


def test_loading_warns_once_and_requests_follow(tmp_path, likely):
    for path in model_directory("small").iterdir():
        if path.name != "generation_config.json":
            (tmp_path / path.name).symlink_to(path)
    keys = dict(do_sample=False, num_beams=4, suppress_tokens=[likely[0], VOCAB, 2**31 - 1], stop_strings=["never this"])
    (tmp_path / "generation_config.json").write_text(json.dumps(keys))
    with pytest.warns(UserWarning, match="num_beams=4, which minllm does not follow") as found, LLM(tmp_path, device="cpu") as llm:
        assert len(found) == 1
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0, logit_bias={likely[0]: -100}, stop="never this")
        assert likely[0] not in llm.generate(PROMPT)[0].outputs[0].token_ids
        assert llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].token_ids == likely[:4], "explicit"


def test_defaults_of_files_that_suggest_nothing():
    llama_cpp = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    for config in (GenerationConfig(), GenerationConfig(do_sample=True), GenerationConfig(eos_token_ids=(3,))):
        assert default_sampling_params(config, VOCAB) == llama_cpp
        words = "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05"
        assert described(llama_cpp, config) == f"{words} (minllm's defaults, as the model's files suggest none)"
        assert described(dataclasses.replace(llama_cpp, top_k=0), config) == "temperature 0.8, top_p 0.95, min_p 0.05"
    config = GenerationConfig(repetition_penalty=1.1, max_new_tokens=64)
    assert default_sampling_params(config, VOCAB) == dataclasses.replace(llama_cpp, repetition_penalty=1.1, max_tokens=64)
    config = GenerationConfig(temperature=0.6, top_p=0.9, top_k=50, max_new_tokens=64, do_sample=True)
    assert default_sampling_params(config, VOCAB) == SamplingParams(temperature=0.6, top_p=0.9, top_k=50, max_tokens=64)
    assert default_sampling_params(GenerationConfig(top_k=-1), VOCAB) == SamplingParams()
    assert described(SamplingParams(), config) == "temperature 1"
    greedy = default_sampling_params(GenerationConfig(do_sample=False, temperature=0.6), VOCAB)
    assert greedy == SamplingParams(temperature=0) and described(greedy, config) == "greedy"


@pytest.mark.parametrize(
    "keys,words",
    [
        (dict(suppress_tokens="5"), "says suppress_tokens = '5', and it must be a token id or a list of them"),
        (dict(suppress_tokens=[1, -1]), r"suppress_tokens = \[1, -1\]"),
        (dict(bad_words_ids=[5]), r"bad_words_ids = \[5\], and it must be a list of lists of token ids"),
        (dict(bad_words_ids=[[]]), "a list of lists of token ids"),
        (dict(bad_words_ids=[[True]]), "a list of lists of token ids"),
        (dict(bad_words_ids={"5": 6}), "a list of lists of token ids"),
        (dict(sequence_bias={"5": 1.0}), "a list of pairs, each a list of token ids and a number"),
        (dict(sequence_bias=[[5, 1.0]]), "a list of pairs"),
        (dict(sequence_bias=[[[5], "much"]]), "a list of pairs"),
        (dict(sequence_bias=[[[5], float("nan")]]), "a list of pairs"),
        (dict(stop_strings=["a", ""]), "a text or a list of texts that are not empty"),
        (dict(stop_strings=5), "a text or a list of texts"),
        (dict(min_new_tokens=-1), "min_new_tokens = -1"),
        (dict(top_k=2.5), "top_k = 2.5"),
        (dict(do_sample="no"), "do_sample = 'no', and it must be true or false"),
        (dict(temperature=-1.0), "generation_config.json holds a value that cannot be used: temperature=-1.0 is not allowed"),
        (dict(stop_strings=[str(i) for i in range(65)]), "generation_config.json holds a value that cannot be used: 65 stop strings"),
    ],
)
def test_values_of_another_type_are_refused(read, keys, words):
    with pytest.raises(CheckpointError, match=words):
        default_sampling_params(read(**keys), VOCAB)
