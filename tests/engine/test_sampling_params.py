"""Every option's edges: what is allowed passes, what is not is named."""

import math

import numpy as np
import pytest

from minllm.engine.sampling_params import MAX_LOGPROBS, SamplingParams, default_sampling_params
from minllm.errors import CheckpointError, InvalidRequestError, MinLLMError
from minllm.models.generation_config import GenerationConfig

NAN, INFINITY = math.nan, math.inf

WRONG = [
    *[("n", value) for value in (0, -1, 1_000_000, 1.0, True, None)],
    *[("temperature", value) for value in (-0.1, 2.01, NAN, INFINITY, "1", None, True)],
    *[("top_p", value) for value in (0, 0.0, -0.5, 1.01, NAN, None)],
    *[("top_k", value) for value in (-2, 1.5, True, "5", NAN)],
    *[("min_p", value) for value in (-0.1, 1.1, NAN)],
    *[("repetition_penalty", value) for value in (0, -1, INFINITY, NAN)],
    *[("presence_penalty", value) for value in (-2.1, 2.1, NAN)],
    *[("frequency_penalty", value) for value in (-2.1, 2.1, NAN)],
    *[("seed", value) for value in (-1, 2**64, 1.0, "0", True)],
    *[("max_tokens", value) for value in (0, -1, 1.5, True, "16")],
    *[("min_tokens", value) for value in (-1, 17, 0.5, None)],
    *[("stop", value) for value in ("", ["a", ""], 5, [5], b"a", {"a"})],
    *[("stop_token_ids", value) for value in ([-1], [1.0], [True], 5, "5", [[1]])],
    *[("logprobs", value) for value in (-1, MAX_LOGPROBS + 1, 1.0, True)],
    *[(name, value) for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output") for value in (None, 1, "yes")],
]


@pytest.mark.parametrize("name,value", WRONG)
def test_wrong_values_are_named(name, value):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value) and isinstance(error.value, MinLLMError)
    given = value[0] if name == "stop_token_ids" and isinstance(value, list) else value
    assert f"={given!r} is not allowed" in str(error.value)


RIGHT = [
    *[("temperature", value) for value in (0, 0.0, 1, 2, 0.7)],
    *[("top_p", value) for value in (1, 1e-9, 0.5)],
    *[("top_k", value) for value in (1, 10**9)],
    *[("min_p", value) for value in (0, 1)],
    *[("repetition_penalty", value) for value in (1e-3, 100)],
    *[("seed", value) for value in (None, 0, 2**64 - 1)],
    *[("max_tokens", value) for value in (None, 1, 10**6)],
    *[("min_tokens", value) for value in (0, 16)],
    *[("logprobs", value) for value in (None, 0, MAX_LOGPROBS)],
]


@pytest.mark.parametrize("name,value", RIGHT)
def test_right_values_are_kept(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_canonical_forms():
    assert SamplingParams(stop="a").stop == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams().stop == SamplingParams().stop_token_ids == ()
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(temperature=1e-5).temperature == 0.01
    assert SamplingParams(temperature=0).is_greedy and not SamplingParams().is_greedy
    assert type(SamplingParams(top_k=np.int64(5)).top_k) is int
    assert SamplingParams(max_tokens=None, min_tokens=100).min_tokens == 100


def test_too_many_stop_strings():
    with pytest.raises(InvalidRequestError, match="65 stop strings .* at most 64"):
        SamplingParams(stop=[str(i) for i in range(65)])


def test_defaults_come_from_the_generation_config():
    assert default_sampling_params(GenerationConfig()) == SamplingParams()
    config = GenerationConfig(temperature=0.6, top_p=0.9, top_k=50, max_new_tokens=64, do_sample=True)
    assert default_sampling_params(config) == SamplingParams(temperature=0.6, top_p=0.9, top_k=50, max_tokens=64)
    assert default_sampling_params(GenerationConfig(do_sample=False, temperature=0.6)).is_greedy
    with pytest.raises(CheckpointError, match="generation_config.json.*temperature=-1"):
        default_sampling_params(GenerationConfig(temperature=-1))
