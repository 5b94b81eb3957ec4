"""LLM(**options) shows and checks the names that EngineOptions alone lists."""

import inspect
import re
from dataclasses import fields

import pytest

from minllm import LLM
from minllm.engine.option_checks import allowed_of
from minllm.engine.option_help import meanings
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError

NAMES = [field.name for field in fields(EngineOptions)]


def test_the_signature_shows_every_option_with_type_and_default():
    parameters = dict(inspect.signature(LLM).parameters)
    assert list(parameters) == [*NAMES, "progress"]
    for field in fields(EngineOptions):
        assert (parameters[field.name].annotation, parameters[field.name].default) == (field.type, field.default)
    assert [name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY] == ["model"]


def test_every_option_has_a_meaning_that_help_shows():
    assert list(meanings(EngineOptions)) == NAMES
    for name, meaning in meanings(EngineOptions).items():
        assert meaning.endswith(".") and f"\n{name}: {meaning}" in LLM.__doc__


def test_every_option_carries_a_check_that_allows_its_default_and_says_what_it_refuses():
    for field in fields(EngineOptions):
        says, allows = allowed_of(field)
        assert says and allows(field.default)
        if field.name != "speculative_config":  # a function of its own checks it
            assert not allows(object())
            with pytest.raises(InvalidOptionError, match=re.escape(f" is not allowed: {field.name} is {says}.")):
                EngineOptions(**{field.name: object()})


@pytest.mark.parametrize(
    "name, words",
    [("max_num_seq", "has no option max_num_seq: did you mean max_num_seqs?"), ("qqq", "has no option qqq: the options are model, device")],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name, words):
    with pytest.raises(InvalidOptionError) as error:
        LLM(**{name: 1})
    assert words in str(error.value)


def test_options_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        LLM(None, "cpu")
