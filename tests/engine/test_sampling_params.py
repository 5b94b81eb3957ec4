"""Every option's edges: what is allowed passes, what is not is named."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.engine.requests.beam_search_params import MAX_BEAM_WIDTH, BeamSearchParams
from minllm.engine.requests.sampling_params import MAX_LOGPROBS, SamplingParams
from minllm.errors import InvalidRequestError, MinLLMError

NAN, INFINITY = math.nan, math.inf
FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")

WRONG = [
    *[("n", value) for value in (0, -1, 1_000_000, 1.0, True, None)],
    *[("best_of", value) for value in (0, -1, 1_000_000, 1.0, True)],
    *[("temperature", value) for value in (-0.1, 2.01, NAN, INFINITY, "1", None, True)],
    *[("top_p", value) for value in (0, 0.0, -0.5, 1.01, NAN, None)],
    *[("top_k", value) for value in (-2, 1.5, True, "5", NAN)],
    *[("min_p", value) for value in (-0.1, 1.1, NAN)],
    *[("repetition_penalty", value) for value in (0, -1, INFINITY, NAN)],
    *[("presence_penalty", value) for value in (-2.1, 2.1, NAN)],
    *[("frequency_penalty", value) for value in (-2.1, 2.1, NAN)],
    *[("seed", value) for value in (-1, 2**64, 1.0, "0", True)],
    *[("max_tokens", value) for value in (-1, 1.5, True, "16")],
    *[("min_tokens", value) for value in (-1, 17, 0.5, None)],
    *[("stop", value) for value in ("", ["a", ""], 5, [5], b"a", {"a"})],
    *[("stop_token_ids", value) for value in ([-1], [1.0], [True], 5, "5", [[1]])],
    *[(name, value) for name in ("logprobs", "prompt_logprobs") for value in (-1, MAX_LOGPROBS + 1, 1.0, True)],
    *[("truncate_prompt_tokens", value) for value in (0, -2, 1.0, True, "5")],
    *[("logit_bias", value) for value in ([(5, 1.0)], "5", 5, {5, 6})],
    *[("allowed_token_ids", value) for value in ([], (), 5, "5")],
    *[("bad_words", value) for value in ("", " ", ["a", "\n"], 5, [5], ["\ud800"])],
    *[("logits_processors", value) for value in (len, [5], "f", [None])],
    *[(name, value) for name in FLAGS for value in (None, 1, "yes")],
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
    *[("max_tokens", value) for value in (None, 0, 1, 10**6)],
    *[("min_tokens", value) for value in (0, 16)],
    *[(name, value) for name in ("logprobs", "prompt_logprobs") for value in (None, 0, MAX_LOGPROBS)],
    *[("best_of", value) for value in (None, 1, 5)],
    *[("truncate_prompt_tokens", value) for value in (None, -1, 1, 10**6)],
    *[("logit_bias", value) for value in (None, {5: -100.0, 6: 100.0, 7: 0.0})],
    *[("allowed_token_ids", value) for value in (None, (5, 6))],
    *[("bad_words", value) for value in ((), ("a", "b c"))],
    *[("logits_processors", value) for value in ((), (len, max))],
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

    assert SamplingParams(stop=["a", "b", "a"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[5, 6, 5]).stop_token_ids == (5, 6)
    assert SamplingParams(allowed_token_ids=[5, 6, 5]).allowed_token_ids == (5, 6)
    assert SamplingParams(logit_bias={"5": 1, 6: -0.5}).logit_bias == {5: 1.0, 6: -0.5}
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert SamplingParams(bad_words="a").bad_words == ("a",)
    assert SamplingParams().bad_words == SamplingParams().logits_processors == ()
    assert SamplingParams(n=2).num_generated == 2 and SamplingParams(n=2, best_of=5).num_generated == 5
    assert {SamplingParams(logit_bias={5: 1})}  # can be hashed


@pytest.mark.parametrize("key", ["a", "-5", "5.0", " 5", "5_0", "\u0665", -1, 1.0, True, None, (5,)])
def test_keys_of_logit_bias(key):
    with pytest.raises(InvalidRequestError, match="token id of logit_bias=.* is not allowed"):
        SamplingParams(logit_bias={key: 1.0})


@pytest.mark.parametrize("bias", [100.1, -100.1, NAN, INFINITY, "1", None, True, 10**400])
def test_values_of_logit_bias(bias):
    with pytest.raises(InvalidRequestError, match=r"logit_bias\[5\]=.* is a number from -100 to 100"):
        SamplingParams(logit_bias={5: bias})


@pytest.mark.parametrize(
    "params,words",
    [
        (dict(logit_bias={5: 1.0, "5": 1.0}), "id 5 is given twice"),
        (dict(n=3, best_of=2), "best_of=2 is not allowed: best_of is None or an integer from n=3"),
        (dict(n=2, temperature=0), "n=2 is not allowed: n is 1 with temperature=0"),
        (dict(best_of=2, temperature=0), "best_of=2 is not allowed: best_of is 1 with temperature=0"),
        (dict(max_tokens=0, min_tokens=1), "min_tokens=1 is not allowed: min_tokens is at most max_tokens=0"),
        (dict(stop="a", detokenize=False), "stop='a' is not allowed: stop is None with detokenize=False"),
        (dict(bad_words=[str(i) for i in range(1025)]), "1025 bad_words were given and at most 1024"),
        (dict(bad_words=["a", "é" * 257]), "bad_words holds one of 257 characters, and at most 256"),
    ],
)
def test_parameters_that_exclude_each_other(params, words):
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**params)
    assert words in str(error.value)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.fractions(), st.decimals(), st.complex_numbers(),
    st.sampled_from([10**400, -(10**400), np.float32(0.5), np.int64(3), np.bool_(True), np.zeros(2), np.array(1), object(), len, {5}]),
)  # fmt: skip
VALUES = ANYTHING | st.lists(ANYTHING, max_size=3) | st.dictionaries(st.text() | st.integers(), ANYTHING, max_size=3)


@pytest.mark.parametrize("kind", [SamplingParams, BeamSearchParams])
@given(data=st.data())
def test_any_value_is_refused_by_name_or_brought_into_a_form_that_stays(kind, data):
    name = data.draw(st.sampled_from([field.name for field in fields(kind)]))
    required = dict(beam_width=2, max_tokens=3) if kind is BeamSearchParams else {}
    value = data.draw(VALUES)
    try:
        params = kind(**required | {name: value})
    except InvalidRequestError as error:
        assert name in str(error) and len(str(error)) < 1000
    else:
        assert replace(params) == params and hash(params) == hash(replace(params))


def test_a_number_that_python_refuses_to_print():
    with pytest.raises(InvalidRequestError, match="max_tokens=<int> is not allowed"):
        SamplingParams(max_tokens=-(10**5000))


@pytest.mark.parametrize(
    "name,value",
    [
        *[("beam_width", value) for value in (0, MAX_BEAM_WIDTH + 1, 2.0, True)],
        *[("max_tokens", value) for value in (0, None, 1.5)],
        *[("temperature", value) for value in (-1, NAN, 3)],
        *[("length_penalty", value) for value in (INFINITY, NAN, 11, "1")],
        *[("ignore_eos", value) for value in (None, 1)],
    ],
)
def test_wrong_beam_searches(name, value):
    with pytest.raises(InvalidRequestError, match=f"{name}=.* is not allowed"):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 3, name: value})


def test_too_many_stop_strings():
    with pytest.raises(InvalidRequestError, match="65 stop strings .* at most 64"):
        SamplingParams(stop=[str(i) for i in range(65)])
