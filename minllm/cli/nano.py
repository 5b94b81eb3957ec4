"""`minllm generate --nano`: the same command on minllm.nano, the engine in one evening."""

import dataclasses
from typing import Any

import typer

from minllm.cli.beam_search import BEAM_OPTIONS
from minllm.cli.generation_options import REQUEST_OPTIONS
from minllm.cli.options import LLM_OPTIONS, flag
from minllm.cli.terminal import show, with_kernel_status
from minllm.engine.options import EngineOptions

PLACE = ("model", "device", "dtype")


def continue_by_nano(text: str, options: dict[str, Any], max_tokens: int, echo: bool) -> None:
    """Stream the continuation of one text to standard output. Raises BadParameter for options that nano lacks."""
    from minllm.nano import NanoLLM, SamplingParams

    taken = [field.name for field in dataclasses.fields(SamplingParams) if field.name != "max_tokens"]
    known = (*BEAM_OPTIONS, *REQUEST_OPTIONS, *LLM_OPTIONS.values())
    foreign = [flag(one.name) for one in known if one.name not in (*PLACE, *taken) and options[one.name] != one.default]
    if foreign:
        raise typer.BadParameter(f"it takes {', '.join(map(flag, (*PLACE, *taken)))}, and not {', '.join(foreign)}", param_hint="--nano")
    device, dtype = EngineOptions(device=options["device"]).resolved_device(), options["dtype"]
    llm = NanoLLM(options["model"], device, "float32" if dtype == "auto" else dtype)
    params = SamplingParams(**{name: options[name] for name in taken if options[name] is not None}, max_tokens=max_tokens)
    show([text] if echo else [], with_kernel_status(llm.stream(text, params)))
