"""The command line: generate, chat, bench, plan, inspect, tune, doctor, exercise, check.

Exit codes: 0 all went well, 1 minllm could not do it (one line on standard error says why), 2 the command was not understood, 130 Ctrl-C.
Text goes to standard output as it is generated and nothing else does, so that it can be piped; cards, bars and errors go to standard error.
"""

import dataclasses
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from minllm.errors import InvalidOptionError
from minllm.terminal import read_prompt, show, user_errors, user_lines, with_kernel_status

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="The LLM inference engine that you can read."
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine.")
app.add_typer(bench_app, name="bench")

SAMPLE_PROMPT = "def fibonacci(n):"
LEVEL_STYLES = {"ok": "green", "note": "cyan", "problem": "bold red"}


class DeviceName(StrEnum):
    """Where to compute; auto is a GPU where one can be used."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(StrEnum):
    """What weights and activations are stored as; auto is what the checkpoint holds."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


ModelOption = Annotated[
    Path | None, typer.Option("--model", "-m", metavar="PATH", help="Hugging Face model directory. Default: the bundled model.")
]
DeviceOption = Annotated[DeviceName, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
DtypeOption = Annotated[DtypeName, typer.Option(help="Of weights and activations; auto is the checkpoint's own.")]
KvCacheDtypeOption = Annotated[
    str, typer.Option("--kv-cache-dtype", metavar="FORMAT", help="Of cached keys and values: auto, int8, int4, fp8_e4m3, fp8_e5m2.")
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="STAGE=NAME",
        help="Use this kernel for a stage (GPU), or that of an exercise's FILE.py (simulated without a GPU). May be repeated.",
    ),
]
MaxTokensOption = Annotated[int, typer.Option(help="Most tokens to generate.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy, 1 the model's own distribution.", show_default=False)]
TopPOption = Annotated[float | None, typer.Option(help="Sample among the likeliest tokens that sum to this.", show_default=False)]
TopKOption = Annotated[int | None, typer.Option(help="Sample among this many likeliest tokens; 0 is all.", show_default=False)]
MinPOption = Annotated[float | None, typer.Option(help="Drop tokens less likely than this times the likeliest.", show_default=False)]
PenaltyOption = Annotated[float | None, typer.Option(help="Above 1, tokens that occurred become less likely.", show_default=False)]
SeedOption = Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default=False)]
StopOption = Annotated[list[str] | None, typer.Option(help="End before this text. May be repeated.", show_default=False)]


def main() -> None:
    """The console script."""
    app()


def print_version(wanted: bool) -> None:
    """--version."""
    if wanted:
        from minllm.machine import installed_version

        typer.echo(f"minllm {installed_version('minllm') or '(not installed: run from its source tree)'}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """The LLM inference engine that you can read."""


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; - reads it from standard input.", show_default=False)] = None,
    model: ModelOption = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens to generate. Default: 128, or 8 where the simulator takes part.", show_default=False)
    ] = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: PenaltyOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    device: DeviceOption = DeviceName.AUTO,
    dtype: DtypeOption = DtypeName.AUTO,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    variant: VariantOption = None,
    echo: Annotated[bool, typer.Option(help="Print the prompt before the text.")] = False,
    card: Annotated[bool, typer.Option(help="Print the report card to standard error.")] = True,
) -> None:
    """Continue a text, streaming, and print how fast it went."""
    if prompt is None and model is not None:
        raise typer.BadParameter("give the text to continue, or - to read it from standard input", param_hint="PROMPT")
    with user_errors():
        from minllm.bench.report_card import as_text, card_of

        text = SAMPLE_PROMPT if prompt is None else read_prompt(prompt)
        llm = load(model, device, dtype, variant, kv_cache_dtype)
        simulated = note_simulated(llm)
        if max_tokens is None:
            max_tokens = 8 if simulated else 128
        params = sampling_params(
            llm, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
            repetition_penalty=repetition_penalty, seed=seed, stop=stop,
        )  # fmt: skip
        with llm.stream(text, params) as stream:
            show([text] if echo or prompt is None else [], with_kernel_status(stream))
        if card:
            Console(stderr=True, highlight=False, soft_wrap=True).print("", as_text(card_of(llm, stream.output.metrics)), sep="\n")


@app.command()
def chat(
    model: ModelOption = None,
    system: Annotated[str | None, typer.Option(help="System message, said before the conversation.", show_default=False)] = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: PenaltyOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    device: DeviceOption = DeviceName.AUTO,
    dtype: DtypeOption = DtypeName.AUTO,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    variant: VariantOption = None,
) -> None:
    """Talk with a model through its chat template; an empty line or end of input ends it."""
    with user_errors():
        llm = load(model, device, dtype, variant, kv_cache_dtype)
        params = sampling_params(
            llm, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
            repetition_penalty=repetition_penalty, seed=seed, stop=stop,
        )  # fmt: skip
        messages = [{"role": "system", "content": system}] if system else []
        for line in user_lines():
            messages.append({"role": "user", "content": line})
            with llm.stream_chat(messages, params) as stream:
                show([], with_kernel_status(stream))
            messages.append({"role": "assistant", "content": stream.output.outputs[0].text})


@bench_app.command("generate")
def bench_generate(
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a directory, or random weights: llama-3.2-1b, llama-3.1-8b."),
    ] = "bundled",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs after the warm-up; the median is reported.")] = 5,
    device: DeviceOption = DeviceName.AUTO,
    dtype: DtypeOption = DtypeName.AUTO,
    variant: VariantOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Time to the first token, and decode speed held against the memory's limit: one sequence, greedy."""
    with user_errors():
        from minllm.bench import generate as benchmark

        options = dict(device=device.value, dtype=dtype.value, kernel_variants=variants(variant))
        benchmark.run(model, options, prompt_tokens=prompt_tokens, tokens=tokens, repeats=repeats, json_file=json_file)


@bench_app.command("kernels")
def bench_kernels(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="STAGE", help="Measure this stage's kernels. May be repeated.", show_default=False)
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="torch", help="Measure PyTorch's kernels beside ours.", show_default=False)] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Every kernel, checked and then timed, held against the speed of a copy and of the tensor cores (needs a GPU)."""
    with user_errors():
        from minllm.bench import kernels as benchmark

        if not benchmark.run(only or (), against, json_file):
            raise typer.Exit(1)


@bench_app.command("step")
def bench_step(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME", help="llama-3.2-1b or llama-3.1-8b; both by default.", show_default=False),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences decoded together; default 1. May be repeated.", show_default=False)
    ] = None,
    context: Annotated[int, typer.Option(min=64, help="Keys that a decoded token sees.")] = 1024,
    prompt: Annotated[int, typer.Option(min=0, help="Tokens of the prefill, which is measured with batch 1; 0 leaves it out.")] = 2048,
    parts: Annotated[bool, typer.Option("--parts", help="Also say what each kernel adds to the decode step.")] = False,
    against: Annotated[
        str | None, typer.Option(metavar="torch", help="Hold the prefill against PyTorch's kernels.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """A whole decode step by graph replay and a whole prefill, with random weights, held against the hardware's limits (needs a GPU)."""
    with user_errors():
        from minllm.bench import step as benchmark

        benchmark.run(model or (), batch or (), context, prompt, parts, against, json_file)


@bench_app.command("launch")
def bench_launch(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """What a launch costs the host, by the way it is made and by what it is given (needs a GPU)."""
    with user_errors():
        from minllm.bench import launch as benchmark

        benchmark.run(json_file)


@bench_app.command("perplexity")
def bench_perplexity(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, draft, or a directory.")] = "bundled",
    device: DeviceOption = DeviceName.AUTO,
    dtype: DtypeOption = DtypeName.BFLOAT16,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """How well a model predicts the Python source that comes with minllm and that its models have never seen."""
    with user_errors():
        from minllm.bench import perplexity as benchmark

        benchmark.run(model, dict(device=device.value, dtype=dtype.value), json_file)


@bench_app.command("accuracy")
def bench_accuracy(
    device: DeviceOption = DeviceName.AUTO,
    dtype: DtypeOption = DtypeName.BFLOAT16,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Of the text to read; default all, which takes a CPU long.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """What each format of a quantised KV cache costs in quality: perplexity, logit error, and how often the likeliest token stays."""
    with user_errors():
        from minllm.bench import accuracy as benchmark

        benchmark.run(dict(device=device.value, dtype=dtype.value), tokens, json_file)


@bench_app.command("cache")
def bench_cache(
    requests: Annotated[int, typer.Option(min=1, help="How many the traffic has.")] = 2000,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Cache policies on one chat traffic: how many sequences fit, how much memory holds no token. Counted; needs no GPU."""
    with user_errors():
        from minllm.bench import cache as benchmark

        benchmark.run(json_file, requests)


@bench_app.command("virtual")
def bench_virtual(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """What mapping memory page by page costs, and decode attention on the virtual cache against a contiguous one (needs a GPU)."""
    with user_errors():
        from minllm.bench import virtual as benchmark

        benchmark.run(json_file)


@bench_app.command("memory")
def bench_memory(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "llama-3.2-1b",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 128,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """The modes of memory: allocation by our pool, synchronous and stream-ordered, pinned and pageable copies (needs a GPU)."""
    with user_errors():
        from minllm.bench import memory as benchmark

        benchmark.run(model, prompt_tokens, tokens, json_file)


@bench_app.command("swap")
def bench_swap(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "llama-3.2-1b",
    most_tokens: Annotated[int, typer.Option(min=64, help="The longest sequence to measure.")] = 16384,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Whether a preempted sequence is better swapped to the host or computed again: predicted, then measured (needs a GPU)."""
    with user_errors():
        from minllm.bench import swap as benchmark

        benchmark.run(model, json_file, most_tokens)


@bench_app.command("simulator")
def bench_simulator(
    repeats: Annotated[int, typer.Option(min=1, help="Runs after the warm-up; the best counts.")] = 3,
    suite: Annotated[bool, typer.Option("--suite", help="Run and time every simulated test too: some minutes, in a clone.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the record as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """How fast the simulator runs kernels on this processor, held against what is allowed; exit code 1 beyond it. Needs no GPU."""
    with user_errors():
        from minllm.bench import simulator as benchmark

        if not benchmark.run(repeats, json_file, suite):
            raise typer.Exit(1)


@app.command()
def plan(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG]", help="config.json, meta.json, a directory, or a known shape; without, what was measured."),
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="h100, a100, rtx-4090... or the driver's name.")] = "h100",
    dtype: Annotated[str | None, typer.Option(help="Of the weights: bf16, fp16, fp32, fp8, int8, int4.", show_default=False)] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence; default 4096 or less.", show_default=False)] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that share the model.")] = 1,
    kv_dtype: Annotated[str | None, typer.Option(help="Of cached keys and values; default as the weights.", show_default=False)] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="Of one GPU: also print what tokens cost.", show_default=False)] = None,
    memory_share: Annotated[float, typer.Option(help="Share of the memory to use.")] = 0.9,
    kv_policy: Annotated[str, typer.Option(help="How the cache is kept: contiguous, paged or virtual.")] = "paged",
    block_size: Annotated[int, typer.Option(help="Tokens in a block of a paged cache.")] = 16,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens that a contiguous cache sets aside for a sequence; default the model's.", show_default=False)
    ] = None,
    caches: Annotated[bool, typer.Option("--caches", help="Also compare all policies and formats of the cache.")] = False,
    stages: Annotated[bool, typer.Option("--stages", help="Also print what each stage of a forward moves and computes.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all of it as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Memory, largest batch, the least time a step can take, and cost of any model on any GPU. Needs neither weights nor GPU."""
    with user_errors():
        from minllm.planning import command

        wishes = dict(context=context, batch=batch, tensor_parallel=tensor_parallel, price_per_hour=price_per_hour)
        cache = dict(kv_dtype=kv_dtype, kv_policy=kv_policy, block_size=block_size, max_model_len=max_model_len)
        wishes |= dict(memory_share=memory_share)
        command.run(model, gpu, dtype=dtype, **cache, caches=caches, stages=stages, json_file=json_file, **wishes)


@app.command()
def inspect(
    kernel: Annotated[str | None, typer.Argument(help="A kernel's name, or a part; without, all are listed.", show_default=False)] = None,
    cc: Annotated[str, typer.Option("--cc", metavar="CC", help="Compute capability of the GPU to compile for: 8.0, 8.9, 9.0...")] = "9.0",
    ptx: Annotated[bool, typer.Option("--ptx", help="Show the PTX, each piece under its line of Python.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Show the machine code, each piece under its line of Python.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all of it as JSON; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Compile a kernel for any GPU and show what became of it: registers, occupancy, instructions, code. Needs no GPU."""
    with user_errors():
        from minllm import inspection_report

        inspection_report.run(kernel, cc, ptx=ptx, sass=sass, json_file=json_file)


@app.command()
def tune(
    model: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="As for plan: config.json, a directory, or a known shape.", show_default=False)
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NxK", help="A weight, outputs x inputs: 28672x4096. May be repeated.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table there; - is standard output.", show_default=False)
    ] = None,
) -> None:
    """Measure which matrix product is the fastest for how many rows on this GPU, and keep it for generation (needs a GPU)."""
    with user_errors():
        from minllm.bench import tune as tuning

        tuning.run(model, shape or (), json_file)


@app.command()
def doctor() -> None:
    """Look for what is wrong with this machine, and say which command mends it."""
    with user_errors():
        from minllm.doctor import diagnose, is_broken
        from minllm.machine import look

        findings = diagnose(look())
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            console.print(f"{finding.level:<8}", style=LEVEL_STYLES[finding.level], end="")
            console.print(f"{finding.subject}: {finding.text}", markup=False)
            if finding.mend:
                console.print(f"        to mend it: {finding.mend}", markup=False)
        if is_broken(findings):
            raise typer.Exit(1)


@app.command()
def exercise(
    lesson: Annotated[
        str | None, typer.Argument(metavar="LESSON|NAME", help="A lesson's number or an exercise's name.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to write them.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there already.")] = False,
) -> None:
    """List the course's exercises, or write some to work on: a Python file and a notebook each, and a test."""
    with user_errors():
        from minllm.course import commands

        commands.exercise(lesson, out, force)


@app.command()
def check(
    name_or_file: Annotated[Path, typer.Argument(metavar="[NAME] FILE", help="The file to check; its exercise's name may come first.")],
    file: Annotated[Path | None, typer.Argument(metavar="", help="", show_default=False)] = None,
) -> None:
    """Check an exercise's file: a ladder of cases, up to the first that fails. Needs no GPU."""
    with user_errors():
        from minllm.course import commands

        if not commands.check(name_or_file, file):
            raise typer.Exit(1)


def load(model: Path | None, device: DeviceName, dtype: DtypeName, variant: list[str] | None, kv_cache_dtype: str = "auto"):
    """The LLM that the options ask for, with progress bars on standard error where somebody watches."""
    from minllm import LLM

    progress = sys.stderr.isatty()
    options = dict(device=device.value, dtype=dtype.value, kv_cache_dtype=kv_cache_dtype, kernel_variants=variants(variant))
    return LLM(model, progress=progress, **options)


def note_simulated(llm) -> bool:
    """Whether kernels of the reader's own run in the simulator; says so on standard error, because it takes its time."""
    stages = getattr(llm.engine.ops, "kernels", {})
    if stages:
        print(f"Your {' and '.join(stages)} runs in the simulator, all else in NumPy: some seconds a token.", file=sys.stderr)
    return bool(stages)


def variants(texts: list[str] | None) -> dict[str, Any] | None:
    """["attention=naive"] as {"attention": "naive"}; the kernel of an exercise's file where one is given instead of a name."""
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


def sampling_params(llm, **wishes: Any):
    """The model's own defaults with what was asked for on the command line."""
    given = {name: value for name, value in wishes.items() if value is not None}
    return dataclasses.replace(llm.get_default_sampling_params(), **given)
