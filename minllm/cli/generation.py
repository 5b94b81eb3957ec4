"""`minllm generate` and `minllm chat`.

Only generated text goes to standard output; tables, cards and errors go to standard error.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from minllm.cli.beam_search import BEAM_OPTIONS, beam_search_params, search_beams
from minllm.cli.generation_options import REQUEST_OPTIONS, load, request_option, request_params
from minllm.cli.nano import continue_by_nano
from minllm.cli.options import LLM_OPTIONS, JsonOption, engine_options, takes
from minllm.cli.output_report import print_logprobs, totals, write_outputs
from minllm.cli.prompt_file import PromptLine, read_prompts
from minllm.cli.terminal import output_file, read_prompt, required_input, show, user_errors, user_lines, with_kernel_status
from minllm.cli.text_input import argument_text, read_text_file
from minllm.engine.options import EngineOptions
from minllm.engine.requests.default_params import described
from minllm.engine.requests.outputs import BeamSearchOutput, RequestOutput

SAMPLE_PROMPT = "def fibonacci(n):"
GENERATE_TOKENS = 128
SIMULATED_TOKENS = 8
CHAT_TOKENS = 512


@takes([request_option("n", int), *BEAM_OPTIONS], REQUEST_OPTIONS, LLM_OPTIONS.values())
def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; - reads it from standard input.", show_default=False)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Prompts, one per line; .jsonl: objects with SamplingParams.", show_default=False),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens to generate. Default: 128, or 8 with the simulator.", show_default=False)
    ] = None,
    echo: Annotated[bool, typer.Option(help="Print the prompt before the text.")] = False,
    card: Annotated[bool, typer.Option(help="Print the report card to standard error.")] = True,
    json_file: JsonOption = None,
    jsonl_file: Annotated[
        Path | None,
        typer.Option("--jsonl", metavar="FILE", help="Also write one JSON line per prompt.", show_default=False, callback=output_file),
    ] = None,
    nano: Annotated[bool, typer.Option(help="Use minllm.nano, the engine in one evening; float32 by default.")] = False,
    **options: Any,
) -> None:
    """Continue a text, streaming, or many texts at once, and print how fast it went."""
    if prompt is not None and prompts is not None:
        raise typer.BadParameter("give either a text to continue or a file of prompts", param_hint="PROMPT")
    if prompt is None and prompts is None and options["model"] is not None:
        raise typer.BadParameter("give the text to continue, or - to read it from standard input", param_hint="PROMPT")
    if options["length_penalty"] is not None and options["beam_width"] is None:
        raise typer.BadParameter("give --beam-width too: sampled texts have no length penalty", param_hint="--length-penalty")
    if nano and (prompts is not None or json_file is not None or jsonl_file is not None or options["n"] is not None):
        reason = "it continues one text, and writes no files: leave out --prompts, --json, --jsonl and --n"
        raise typer.BadParameter(reason, param_hint="--nano")
    if json_file is not None and json_file == jsonl_file:
        raise typer.BadParameter("--json has the same file: give another", param_hint="--jsonl")
    with user_errors():
        text = SAMPLE_PROMPT if prompt is None else read_prompt(prompt)
        if nano:
            return continue_by_nano(text, options, GENERATE_TOKENS if max_tokens is None else max_tokens, echo or prompt is None)
        lines = [PromptLine(text, {}, "")] if prompts is None else read_prompts(prompts)
        llm = load(options)
        usual_tokens = SIMULATED_TOKENS if note_simulated(llm) else GENERATE_TOKENS
        max_tokens = usual_tokens if max_tokens is None else max_tokens
        is_shown = "-" not in (str(json_file), str(jsonl_file))
        if options["beam_width"] is not None:
            found = search_beams(llm, lines, beam_search_params(options, max_tokens, lines), is_shown)
            return write_files(found, json_file, jsonl_file)
        params = request_params(llm, options, max_tokens=max_tokens, n=options["n"])
        if prompts is None and params.n == 1:
            outputs = [continue_one(llm, text, params, echo or prompt is None, card, is_shown)]
        else:
            outputs = continue_many(llm, lines, params, echo, card, is_shown)
        for output in outputs:
            print_logprobs(output)
        write_files(outputs, json_file, jsonl_file)


def continue_one(llm, text: str, params, echo: bool, card: bool, is_shown: bool) -> RequestOutput:
    """Stream one text to standard output and print its report card; returns the RequestOutput."""
    from minllm.bench.report_card import as_text, card_of

    with llm.stream(text, params) as stream:
        show_or_skip([text] if echo else [], with_kernel_status(stream), is_shown)
    if card:
        Console(stderr=True, highlight=False, soft_wrap=True).print("", as_text(card_of(llm, stream.output.metrics, params)), sep="\n")
    return stream.output


def continue_many(llm, lines: Sequence[PromptLine], params, echo: bool, card: bool, is_shown: bool) -> list[RequestOutput]:
    """Continue all prompts at once and print each text under a heading; returns the RequestOutputs."""
    all_params = [line.params(params) for line in lines]
    start = time.perf_counter()
    outputs = llm.generate([line.prompt for line in lines], all_params)
    seconds = time.perf_counter() - start
    for number, output in enumerate(outputs, 1):
        for completion in output.outputs if is_shown else ():
            heading = f"--- prompt {number} of {len(outputs)}, completion {completion.index + 1} of {len(output.outputs)}"
            print(heading, file=sys.stderr, flush=True)
            show([output.prompt] if echo and output.prompt else [], [completion.text])
    if card:
        print(totals(outputs, seconds), file=sys.stderr)
    return outputs


@takes(REQUEST_OPTIONS, LLM_OPTIONS.values())
def chat(
    system: Annotated[str | None, typer.Option(help="System message, said before the conversation.", show_default=False)] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option("--chat-template", metavar="FILE", help="A Jinja template, or the name of one of the model's.", show_default=False),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens per reply. Default: generation_config.json's, or 512.", show_default=False)
    ] = None,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """Talk with a model through its chat template; an empty line or end of input ends it."""
    with user_errors():
        template = None if chat_template is None else template_or_name(chat_template)
        required_input()  # refused before a model is loaded
        messages = [{"role": "system", "content": argument_text(system)}] if system else []
        check_template(options, messages, template)
        llm, outputs = load(options), []
        if max_tokens is None:
            max_tokens = llm.engine.generation_config.max_new_tokens or CHAT_TOKENS
        params = request_params(llm, options, max_tokens=max_tokens)
        for line in user_lines():
            if not outputs:
                print(f"sampling: {described(params, llm.engine.generation_config)}", file=sys.stderr)
            messages.append({"role": "user", "content": line})
            with llm.stream_chat(messages, params, chat_template=template) as stream:
                show_or_skip([], with_kernel_status(stream), str(json_file) != "-")
            outputs.append(stream.output)
            print_logprobs(stream.output)
            messages.append({"role": "assistant", "content": stream.output.outputs[0].text})
        write_files(outputs, json_file)


def check_template(options: dict[str, Any], messages: list[dict[str, str]], template: str | None) -> None:
    """Render a first message before the model is loaded. Raises InvalidRequestError if there is no template, or if it refuses these."""
    from minllm.engine.build.weights import model_source

    tokenizer = model_source(EngineOptions(**engine_options(options))).tokenizer()
    tokenizer.apply_chat_template([*messages, {"role": "user", "content": "Hello"}], chat_template=template)


def template_or_name(path: Path) -> str:
    """The text of a template's file; a single word that is no file stays the name of one of the model's templates."""
    return str(path) if path.name == str(path) and not path.suffix and not path.exists() else read_text_file(path)


def show_or_skip(before: list[str], pieces: Iterable[str], is_shown: bool) -> None:
    """Write the pieces to standard output as they come, or only consume them if standard output is for JSON."""
    if is_shown:
        show(before, pieces)
    else:
        deque(pieces, maxlen=0)


def write_files(outputs: Sequence[RequestOutput | BeamSearchOutput], json_file: Path | None, jsonl_file: Path | None = None) -> None:
    """Write the outputs as JSON to `json_file` and as JSON lines to `jsonl_file`, if given."""
    for path, lines in ((json_file, False), (jsonl_file, True)):
        if path is not None:
            write_outputs(path, outputs, lines)


def note_simulated(llm) -> bool:
    """Whether kernels of the user run in the simulator; if so, prints on standard error that this is slow, and how long the text is."""
    stages = getattr(llm.engine.ops, "kernels", {})
    if stages:
        print(
            f"Your {' and '.join(stages)} runs in the simulator, all else in NumPy. This is slow: without --max-tokens, "
            f"{SIMULATED_TOKENS} tokens are generated.",
            file=sys.stderr,
        )
    return bool(stages)
