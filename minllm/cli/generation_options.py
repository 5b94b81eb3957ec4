"""The options of a request that `generate` and `chat` share: fields of SamplingParams, whose docstring holds their help texts."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from minllm.cli.options import engine_options, flag, option
from minllm.cli.text_input import read_text_file, unescaped
from minllm.engine.requests.parameter_help import meanings
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.errors import InvalidOptionError


def request_option(
    name: str, kind: Any, more: str = "", metavar: str | None = None, of: type = SamplingParams, called: str | None = None
) -> inspect.Parameter:  # fmt: skip
    """The parameter for a field of SamplingParams (or `of`), with the field's name and meaning.

    more: added to the help. called: the flag, if it is not the field's name.
    """
    meaning = meanings(of).get(name, "")
    words = " ".join(filter(None, (meaning[:1].upper() + meaning[1:], more)))
    is_flag = kind is bool
    declared = typer.Option(called or flag(name), metavar=metavar, help=words, show_default=False)
    return option(name, Annotated[kind if is_flag else kind | None, declared], False if is_flag else None)


def structure_option(name: str, kind: Any, metavar: str | None = None, of: str | None = None) -> inspect.Parameter:
    """The parameter for a field of StructuredOutputsParams; `of`: the field, if the option has another name."""
    more = {Path: "Read from a file.", list[str]: "May be repeated."}.get(kind, "")
    found = request_option(of or name, kind, more, metavar, StructuredOutputsParams, flag(name))
    return found.replace(name=name)


REQUEST_OPTIONS = (
    request_option("temperature", float),
    request_option("top_p", float),
    request_option("top_k", int),
    request_option("min_p", float),
    request_option("repetition_penalty", float),
    request_option("presence_penalty", float),
    request_option("frequency_penalty", float),
    request_option("logit_bias", list[str], "May be repeated.", metavar="ID=BIAS"),
    request_option("seed", int),
    request_option("min_tokens", int),
    request_option("stop", list[str], r"\n, \r, \t, \\ and \uXXXX stand for their characters. May be repeated.", metavar="TEXT"),
    request_option("stop_token_ids", str, metavar="ID,ID,..."),
    request_option("ignore_eos", bool),
    structure_option("json_schema", Path, "FILE", "json"),
    structure_option("json_object", bool),
    structure_option("regex", str, "REGEX"),
    structure_option("choice", list[str], "TEXT"),
    structure_option("grammar", Path, "FILE"),
    request_option("logprobs", int, "They are printed as a table."),
    request_option("prompt_logprobs", int, "They are printed as a table."),
)


STRUCTURES = dict(json_schema="json", json_object="json_object", regex="regex", choice="choice", grammar="grammar")


def load(options: dict[str, Any]):
    """The LLM with a command's LLM_OPTIONS, and progress bars if standard error is a terminal."""
    from minllm import LLM

    return LLM(progress=sys.stderr.isatty(), **engine_options(options))


def request_params(llm, options: dict[str, Any], **more: Any) -> SamplingParams:
    """The model's default parameters, overridden by those of REQUEST_OPTIONS and `more` that are not None."""
    given = {one.name: options[one.name] for one in REQUEST_OPTIONS} | more
    given["structured_outputs"] = structure({name: given.pop(name) for name in STRUCTURES})
    given |= dict(logit_bias=parsed_biases(options["logit_bias"]), stop_token_ids=parsed_ids(options["stop_token_ids"]))
    given["stop"] = None if options["stop"] is None else [unescaped(one) for one in options["stop"]]
    return dataclasses.replace(llm.get_default_sampling_params(), **{name: value for name, value in given.items() if value is not None})


def structure(given: dict[str, Any]) -> StructuredOutputsParams | None:
    """What the output must be, from the options of STRUCTURES; None if none is given."""
    given = {name: read_text_file(value) if isinstance(value, Path) else value for name, value in given.items()}
    found = {STRUCTURES[name]: value for name, value in given.items() if value not in (None, False)}
    return StructuredOutputsParams(**found) if found else None


def parsed_biases(texts: list[str] | None) -> dict[str, float] | None:
    """["50256=-100"] as {"50256": -100.0}. Raises InvalidOptionError for any other form."""
    biases: dict[str, float] = {}
    for text in texts or []:
        token_id, equals, bias = text.partition("=")
        try:
            value = float(bias)
        except ValueError:
            value = None
        if not (token_id.isascii() and token_id.isdigit()) or value is None or token_id in biases:
            raise InvalidOptionError(f"--logit-bias {text} is not allowed: write ID=BIAS, once per token: --logit-bias 50256=-100.")
        biases[token_id] = value
    return biases or None


def parsed_ids(text: str | None) -> list[int] | None:
    """ "13,198" as [13, 198]. Raises InvalidOptionError for any other form."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
        raise InvalidOptionError(f"--stop-token-ids {text} is not allowed: write ids with commas: --stop-token-ids 13,198.")
    return [int(part) for part in parts]
