"""`minllm generate --beam-width`: the likeliest continuations of each prompt, under headings with their log-probabilities."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import typer

from minllm.cli.generation_options import REQUEST_OPTIONS, request_option
from minllm.cli.options import flag
from minllm.cli.prompt_file import PromptLine
from minllm.cli.terminal import show
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.engine.requests.outputs import BeamSearchOutput

BEAM_OPTIONS = (request_option("beam_width", int, of=BeamSearchParams), request_option("length_penalty", float, of=BeamSearchParams))


def beam_search_params(options: dict[str, Any], max_tokens: int, lines: Sequence[PromptLine]) -> BeamSearchParams:
    """The BeamSearchParams of a command's options.

    Raises BadParameter for sampling options, here or in a prompt's line.
    """
    names = {field.name for field in dataclasses.fields(BeamSearchParams)}
    given = {name: options[name] for name in ("n", *(one.name for one in REQUEST_OPTIONS)) if options[name] not in (None, False)}
    sampling = [flag(name) for name in given if name not in names] + [line.place for line in lines if line.fields]
    if sampling:
        raise typer.BadParameter(f"beam search draws nothing: leave out the sampling options of {sampling[0]}", param_hint="--beam-width")
    given |= {one.name: options[one.name] for one in BEAM_OPTIONS if options[one.name] is not None}
    return BeamSearchParams(max_tokens=max_tokens, **given)


def search_beams(llm, lines: Sequence[PromptLine], params: BeamSearchParams, is_shown: bool) -> list[BeamSearchOutput]:
    """Search from all prompts at once; prints each text, with its prompt, under a heading if `is_shown`."""
    outputs = llm.beam_search([line.prompt for line in lines], params)
    for number, output in enumerate(outputs, 1):
        for rank, sequence in enumerate(output.sequences if is_shown else (), 1):
            place = f"prompt {number} of {len(outputs)}, sequence {rank} of {len(output.sequences)}"
            print(f"--- {place}, log p {sequence.cum_logprob:.3f}, {sequence.finish_reason}", file=sys.stderr, flush=True)
            show([], [sequence.text])
    return outputs
