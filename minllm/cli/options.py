"""Options that several commands share: those of LLM(), whose types, defaults and meanings are those of EngineOptions' fields.

    @takes(engine("device", "dtype", "variant"))
    def command(..., **options): LLM(**engine_options(options))
"""  # fmt: skip

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from minllm.cli.terminal import output_file
from minllm.engine.option_help import meanings
from minllm.engine.options import DEVICES, DTYPE_ALIASES, DTYPES, EngineOptions
from minllm.errors import InvalidOptionError, shown

JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write it as JSON; - is standard output.", show_default=False, callback=output_file),
]
OTHER_NAMES = {"kv_window": "kv_cache_residual_window", "variant": "kernel_variants"}  # {option of a command: option of LLM()}
FIELDS = {field.name: field for field in dataclasses.fields(EngineOptions)}
MEANINGS = meanings(EngineOptions)
PREFIX_HELP = "Compute what prompts have in common once (paged cache)."
VARIANT_HELP = "Use this kernel for a stage (GPU), or that of an exercise's FILE.py (simulated without a GPU). May be repeated."


def option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """The parameter of a command for an option; annotation: type and help, Annotated[...]."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def flag(name: str) -> str:
    """The flag of an option: --top-p for top_p."""
    return "--" + name.replace("_", "-")


def engine_option(
    name: str, *declared: str, kind: Any = None, choices: Sequence[str] = (), help: str = "", metavar: str | None = None
) -> inspect.Parameter:  # fmt: skip
    """The parameter for an option of LLM(), with its field's type, default and meaning's first sentence unless others are given.

    declared: flags, if there are more than the name's. choices: the values that the command line takes.
    """
    field = FIELDS[OTHER_NAMES.get(name, name)]
    any_choice: Any = Literal
    sentence = re.split(r"(?<=\.) ", MEANINGS.get(field.name, ""))[0]
    words = help or re.sub(r" \([\w/]+\.py\)", "", sentence)  # a reader of help has no source at hand
    found = typer.Option(*(declared or [flag(name)]), metavar=metavar, help=words, show_default=field.default not in (None, False))
    return option(name, Annotated[any_choice[tuple(choices)] if choices else kind or field.type, found], field.default)


def by_name(*options: inspect.Parameter) -> dict[str, inspect.Parameter]:
    """{name: option}."""
    return {one.name: one for one in options}


LLM_OPTIONS = by_name(
    engine_option("model", "--model", "-m", kind=str | None, metavar="PATH"),
    engine_option("device", choices=DEVICES),
    engine_option("dtype", choices=(*DTYPES, *DTYPE_ALIASES), metavar="DTYPE"),
    engine_option("quantization", metavar="FORMAT"),
    engine_option("max_model_len"),
    engine_option("kv_cache_dtype", metavar="FORMAT"),
    engine_option("kv_window"),
    engine_option("kv_cache_policy", metavar="POLICY"),
    engine_option("enable_prefix_caching", "--enable-prefix-caching/--no-enable-prefix-caching", kind=bool, help=PREFIX_HELP),
    engine_option("speculative_config", kind=str | None, metavar="JSON"),
    engine_option("batch_invariant"),
    engine_option("tensor_parallel_size"),
    engine_option("pipeline_parallel_size"),
    engine_option("decode_context_parallel_size"),
    engine_option("variant", kind=list[str] | None, metavar="STAGE=NAME", help=VARIANT_HELP),
)
ENGINE_OPTIONS = LLM_OPTIONS | by_name(
    engine_option("scheduling_policy", metavar="POLICY"),
    engine_option("preemption", metavar="MODE"),
    engine_option("max_num_seqs"),
    engine_option("max_num_batched_tokens"),
    engine_option("gpu_memory_utilization"),
    engine_option("kv_cache_memory_bytes"),
    engine_option("load_format", metavar="FORMAT"),
)


def engine(*names: str, **defaults: Any) -> list[inspect.Parameter]:
    """The parameters for these options of LLM(), and for those that have other defaults in a command."""
    own = [ENGINE_OPTIONS[name].replace(default=default) for name, default in defaults.items()]
    return [*(ENGINE_OPTIONS[name] for name in names), *own]


def takes(*groups: Iterable[inspect.Parameter]) -> Callable[[Callable], Callable]:
    """Decorate a command that ends in **options: adds the options of these groups to its command line."""

    def decorate(command: Callable) -> Callable:
        own = [one for one in inspect.signature(command).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        command.__signature__ = inspect.Signature([*own, *(one for group in groups for one in group)])
        return command

    return decorate


def refuse_idle(context: typer.Context, reason: str, taken: Iterable[str]) -> None:
    """Raise BadParameter for an option on the command line that has no effect; taken: the names of the parameters that have one."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in taken:
            raise typer.BadParameter(f"{reason}: leave it out", param_hint=parameter.opts[0])


def engine_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of LLM() that a command's options hold."""
    given = {OTHER_NAMES.get(name, name): options[name] for name in ENGINE_OPTIONS if name in options}
    parsed = dict(kernel_variants=variants, speculative_config=parsed_speculation)
    return given | {name: parse(given[name]) for name, parse in parsed.items() if name in given}


def variants(texts: list[str] | None) -> dict[str, Any] | None:
    """["attention=naive"] as {"attention": "naive"}; a value that is a Python file is replaced by the kernel in it.

    Raises InvalidOptionError for any other form.
    """
    pairs = {}
    for text in texts or []:
        stage, equals, name = text.partition("=")
        if not (stage and equals and name):
            raise InvalidOptionError(f"--variant {text} is not allowed: write STAGE=NAME, for example --variant matmul=naive.")
        pairs[stage] = name
        if name.endswith(".py"):
            from minllm.course.plug import own_kernel

            pairs[stage] = own_kernel(stage, Path(name))
    return pairs or None


def parsed_speculation(text: str | None) -> Any:
    """The parsed JSON of --speculative-config. Raises InvalidOptionError if it is not valid JSON."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(
            f"--speculative-config {shown(text)} is not allowed: {error}. Write JSON in single quotes: "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\'.'
        ) from None
