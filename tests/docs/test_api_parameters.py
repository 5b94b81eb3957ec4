"""Every parameter and every field of the public API has a row with its meaning on the API page; Python's own signatures are the oracle."""

import dataclasses
import inspect
import re
import sys
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe", reason="pip install 'minllm[docs]'")
pytest.importorskip("mkdocstrings", reason="pip install 'minllm[docs]'")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))

import api_parameters  # noqa: E402

import minllm  # noqa: E402
from minllm.engine.options import EngineOptions  # noqa: E402
from minllm.engine.requests import outputs  # noqa: E402

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CLASSES = [minllm.LLM, minllm.AsyncLLM, minllm.LLMEngine]
FIELDS = [EngineOptions, minllm.SamplingParams, minllm.StructuredOutputsParams, minllm.BeamSearchParams, minllm.ContrastiveSearchParams,
          minllm.RequestOutput, minllm.CompletionOutput, minllm.BeamSearchOutput, minllm.BeamSearchSequence, outputs.RequestMetrics,
          outputs.Logprob]  # fmt: skip


@pytest.fixture(scope="module")
def package():
    return griffe.load("minllm", search_paths=[str(ROOT)], extensions=griffe.load_extensions(api_parameters.Extension))


def rows(package, one):
    """{name: row} of the table that a class or function has on the page."""
    found = package[f"{one.__module__}.{one.__qualname__}".removeprefix("minllm.")]
    tables = [section for section in found.docstring.parsed if section.kind.value in ("parameters", "attributes")]
    return {row.name: row for table in tables for row in table.value}


def documented(one):
    """The functions of a class that docs/api.md lists, and the class if users make it."""
    listed = re.search(rf"^::: minllm\.{one.__name__}\n.*?members: \[(.*?)\]", PAGE, re.DOTALL | re.MULTILINE)[1].split(", ")
    functions = [getattr(one, name) for name in listed if inspect.isroutine(inspect.getattr_static(one, name)) or name == "of"]
    return functions + ([] if one is minllm.LLMEngine else [one])


@pytest.mark.parametrize("one", [one for each in CLASSES for one in documented(each)], ids=lambda one: one.__qualname__)
def test_every_parameter_has_a_row(package, one):
    signature = inspect.signature(one.__init__ if inspect.isclass(one) else one)
    wanted = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    table = rows(package, one) if wanted else {}
    stars = {inspect.Parameter.VAR_KEYWORD: "**"}
    assert list(table) == [stars.get(parameter.kind, "") + parameter.name for parameter in wanted]
    for row, parameter in zip(table.values(), wanted):
        assert len(row.description) > 8, row.name
        if parameter.default is not inspect.Parameter.empty:
            assert eval(str(row.value)) == parameter.default


@pytest.mark.parametrize("one", FIELDS, ids=lambda one: one.__name__)
def test_every_field_has_a_row(package, one):
    table = rows(package, one)
    assert list(table) == [field.name for field in dataclasses.fields(one)]
    assert all(row.description and row.annotation for row in table.values())
    if one in FIELDS[:4]:
        defaults = {field.name: field.default for field in dataclasses.fields(one) if field.default is not dataclasses.MISSING}
        assert {name: eval(str(table[name].value)) for name in defaults} == defaults


@pytest.mark.parametrize("one", [minllm.TextPrompt, minllm.TokensPrompt], ids=lambda one: one.__name__)
def test_every_key_of_a_prompt_has_a_row(package, one):
    assert set(rows(package, one)) == set(one.__annotations__)
    assert all(row.description for row in rows(package, one).values())


def test_allowed_values_are_what_a_refusal_says(package):
    told = rows(package, minllm.SamplingParams)["temperature"].description
    with pytest.raises(minllm.errors.MinLLMError) as refused:
        minllm.SamplingParams(temperature=3)
    allowed = told.partition("Allowed: ")[2].rstrip(".")
    assert allowed and allowed in str(refused.value)
    assert all("Allowed: " in row.description for row in rows(package, EngineOptions).values())


def test_a_reference_shows_the_meaning_itself(package):
    prompts = rows(package, minllm.LLM.generate)["prompts"].description
    assert rows(package, minllm.LLM.beam_search)["prompts"].description == prompts
    assert rows(package, minllm.AsyncLLM.generate)["deadline"].description.startswith("seconds from now")


def test_an_entry_stands_once_on_the_page(package):
    """The prose above a table is the docstring without the table's entries."""
    prose = package["engine.requests.sampling_params.SamplingParams"].docstring.parsed[0].value
    assert prose.startswith("The options of one request") and "temperature:" not in prose


def test_entries_of_a_docstring():
    text = "Says hello.\n\nname: of a person. first and `last`: two\n    numbers. Not an entry: this.\n\nRaises nothing."
    prose, entries = api_parameters.described(text, ["name", "first", "last"])
    assert prose == "Says hello.\n\nRaises nothing."
    assert entries == {"name": "of a person.", "first": "two numbers. Not an entry: this.", "last": "two numbers. Not an entry: this."}
