"""Prompts from a file: one per line, or in a .jsonl file one object per line, with a prompt and optional sampling parameters.

    {"prompt": "def fibonacci(n):", "temperature": 0.2, "max_tokens": 64}
"""  # fmt: skip

import dataclasses
import difflib
import json
from pathlib import Path
from typing import Any, NamedTuple

from minllm.cli.text_input import read_text_file
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.errors import InvalidOptionError, InvalidRequestError

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]


class PromptLine(NamedTuple):
    """A prompt for LLM.generate, its fields of SamplingParams, and its file and line for errors."""

    prompt: str | dict[str, Any]
    fields: dict[str, Any]
    place: str

    def params(self, common: SamplingParams) -> SamplingParams:
        """The parameters `common`, overridden by this prompt's. Raises InvalidOptionError for a wrong value."""
        try:
            fields = dict(self.fields)
            if isinstance(fields.get("structured_outputs"), dict):
                fields["structured_outputs"] = _structure(fields["structured_outputs"])
            return dataclasses.replace(common, **fields)
        except InvalidRequestError as error:
            raise InvalidOptionError(f"{self.place}: {error}") from error


def _structure(given: dict[str, Any]) -> StructuredOutputsParams:
    """A StructuredOutputsParams with these fields. Raises InvalidRequestError."""
    try:
        return StructuredOutputsParams(**given)
    except TypeError:
        names = ", ".join(field.name for field in dataclasses.fields(StructuredOutputsParams))
        raise InvalidRequestError(f"structured_outputs={given} is not allowed: its fields are {names}.") from None


def read_prompts(path: Path) -> list[PromptLine]:
    """The prompts of a file; empty lines are skipped.

    Raises InvalidOptionError, which names the file and the line.
    """
    parse = _parsed_object if path.suffix == ".jsonl" else _plain
    lines = enumerate(read_text_file(path).split("\n"), 1)
    prompts = [parse(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not prompts:
        raise InvalidOptionError(f"{path} has no prompt: write one per line.")
    return prompts


def _plain(line: str, place: str) -> PromptLine:
    return PromptLine(line, {}, place)


def _parsed_object(line: str, place: str) -> PromptLine:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(f"{place} is not valid JSON: {error}.") from None
    if not isinstance(content, dict) or not {"prompt", "prompt_token_ids"} & content.keys():
        raise InvalidOptionError(f'{place} is not an object with a prompt: write {{"prompt": "text"}} or {{"prompt_token_ids": [1, 2]}}.')
    for name in content:
        if name not in (*PROMPT_KEYS, *FIELDS):
            near = difflib.get_close_matches(name, [*PROMPT_KEYS, *FIELDS], n=1)
            raise InvalidOptionError(f"{place}: {name} is not a field of SamplingParams{f'; did you mean {near[0]}?' if near else '.'}")
    prompt = {name: content[name] for name in PROMPT_KEYS if name in content}
    return PromptLine(prompt, {name: value for name, value in content.items() if name in FIELDS}, place)
