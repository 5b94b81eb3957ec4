"""The command line: generate, chat, serve, bench, quantize, plan, inspect, tune, doctor, exercise, check, race.

Exit codes: 0 success, 1 minllm failed (one line on standard error gives the reason), 2 invalid command line, 130 Ctrl-C. Only generated
text goes to standard output, as it is generated, so that it can be piped; cards, bars and errors go to standard error.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minllm.cli.bench import bench_app
from minllm.cli.generation import chat, generate
from minllm.cli.options import JsonOption, refuse_idle
from minllm.cli.quantize import quantize_command
from minllm.cli.serve import serve
from minllm.cli.terminal import open_missing_streams, output_file, run_to_the_end, user_errors
from minllm.errors import InvalidOptionError
from minllm.machine.call_frames import with_room
from minllm.machine.collector import collect_rarely

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="The LLM inference engine that you can read.")
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.add_typer(bench_app, name="bench")

app.command("quantize")(quantize_command)

LEVEL_STYLES = {"ok": "green", "note": "cyan", "problem": "bold red"}


def main() -> None:
    """The entry point of the console script."""
    open_missing_streams()
    collect_rarely()
    run_to_the_end(with_room(app))


def print_version(wanted: bool) -> None:
    """Handle --version."""
    if wanted:
        from minllm.machine.devices import installed_version

        typer.echo(f"minllm {installed_version('minllm') or '(not installed: run from its source tree)'}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """The LLM inference engine that you can read."""


@app.command()
def plan(
    context_of_command: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[CONFIG]", help="config.json, meta.json, directory, GGUF file or known shape; without, what was measured."),
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="h100, a100, rtx-4090... or the driver's name.")] = "h100",
    dtype: Annotated[str | None, typer.Option(help="Of the weights: bf16, fp16, fp32, fp8, int8, int4, nf4.", show_default=False)] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence; default 4096 or less.", show_default=False)] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", "--tensor-parallel-size", min=1, help="GPUs that share the model.")
    ] = 1,
    pipeline_parallel: Annotated[
        int,
        typer.Option(
            "--pipeline-parallel", "--pipeline-parallel-size", min=1, help="Stages that share the layers, each on --tensor-parallel GPUs."
        ),
    ] = 1,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Format of cached keys and values, also kivi_int4; default the weights' type.", show_default=False)
    ] = None,
    kv_window: Annotated[
        int | None, typer.Option(help="Newest tokens that a quantised cache keeps as they are; default the format's.", show_default=False)
    ] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="Price of one GPU; prints what tokens cost.", show_default=False)] = None,
    memory_share: Annotated[float, typer.Option(help="Share of the memory to use.")] = 0.9,
    kv_policy: Annotated[str, typer.Option(help="How the cache is kept: contiguous, paged or virtual.")] = "paged",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in a block of a paged cache; default 16, with kivi_int4 32.", show_default=False)
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that a contiguous cache sets aside for a sequence; default the model's.", show_default=False),
    ] = None,
    caches: Annotated[bool, typer.Option("--caches", help="Also compare all policies and formats of the cache.")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="Also predict steps with the weights in other formats, by batch.")] = False,
    stages: Annotated[bool, typer.Option("--stages", help="Also print what each stage of a forward pass moves and computes.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Memory, largest batch, the least time a step can take, and cost of any model on any GPU. Needs neither weights nor GPU."""
    if model is None:
        refuse_idle(context_of_command, "without CONFIG, what was measured is printed", ("gpu", "json_file"))
    with user_errors():
        from minllm.planning import command

        wishes = dict(context=context, batch=batch, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
        cache = dict(kv_dtype=kv_dtype, kv_policy=kv_policy, block_size=block_size, max_model_len=max_model_len)
        wishes |= dict(memory_share=memory_share, kv_window=kv_window, price_per_hour=price_per_hour)
        command.run(model, gpu, dtype=dtype, **cache, caches=caches, stages=stages, formats=formats, json_file=json_file, **wishes)


@app.command()
def inspect(
    context: typer.Context,
    kernel: Annotated[str | None, typer.Argument(help="A kernel's name or part of it; default: list all.", show_default=False)] = None,
    cc: Annotated[str, typer.Option("--cc", metavar="CC", help="Compute capability of the GPU to compile for: 7.5, 8.0, 9.0...")] = "9.0",
    ptx: Annotated[bool, typer.Option("--ptx", help="Show the PTX, each piece under its line of Python.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Show the machine code, each piece under its line of Python.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Compile a kernel for any GPU and show the result: registers, occupancy, instructions, code. Needs no GPU."""
    if kernel is None:
        refuse_idle(context, "without KERNEL, all are listed", ("cc", "json_file"))
    with user_errors():
        from minllm.cli import inspection_report

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
    """Measure which GEMM is the fastest for each number of rows on this GPU, and keep the result for generation (needs a GPU)."""
    with user_errors():
        from minllm.bench import tune as tuning

        tuning.run(model, shape or (), json_file)


@app.command()
def doctor() -> None:
    """Find what is wrong with this machine, and which command fixes it."""
    with user_errors():
        from minllm.cli.trial_kernel import try_kernel
        from minllm.machine.devices import look
        from minllm.machine.doctor import diagnose, is_broken

        findings = diagnose(look(try_kernel))
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            console.print(f"{finding.level:<8}", style=LEVEL_STYLES[finding.level], end="")
            console.print(f"{finding.subject}: {finding.text}", markup=False)
            if finding.mend:
                console.print(f"        to fix it: {finding.mend}", markup=False)
        if is_broken(findings):
            raise typer.Exit(1)


@app.command()
def exercise(
    context: typer.Context,
    lesson: Annotated[
        str | None, typer.Argument(metavar="LESSON|NAME", help="A lesson's number, an exercise's name, or: project.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to write them.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there already.")] = False,
) -> None:
    """List the course's exercises, or write some to work on: a Python file and a notebook each, and a test."""
    if lesson is None:
        refuse_idle(context, "without LESSON or NAME, the exercises are listed", ())
    with user_errors():
        from minllm.course import commands

        commands.exercise(lesson, out, force)


@app.command()
def check(
    name_or_file: Annotated[Path, typer.Argument(metavar="NAME|FILE", help="The exercise's file, or its name before the file.")],
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The file, after a name.", show_default=False)] = None,
) -> None:
    """Check an exercise's file: a ladder of cases, up to the first that fails. `project FOLDER` checks the final project. Needs no GPU."""
    with user_errors():
        from minllm.course.check_command import check

        if not check(name_or_file, file):
            raise typer.Exit(1)


@app.command()
def race(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A Python file with matmul, softmax or decode_attention.", show_default=False)
    ] = None,
    new: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write a file to begin with: matmul, softmax, decode_attention.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the arrays: float32 or float16.")] = "float32",
    size: Annotated[
        str | None, typer.Option(metavar="AxBx...", help="Size of the race on a GPU, such as 4096x4096x4096.", show_default=False)
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write the race's picture there.", show_default=False, callback=output_file),
    ] = None,
) -> None:
    """Check and trace a kernel of your own in the simulator, and on a GPU race it against the package's kernels and PyTorch's."""
    if new is not None:
        refuse_idle(context, "--new only writes a file", ("new", "file"))
    with user_errors():
        from minllm.course.race import command

        if new is not None:
            command.write_template(new, file)
        elif file is None:
            raise InvalidOptionError("name a file: minllm race FILE.py; `minllm race --new softmax` writes one to begin with.")
        elif not command.race(file, dtype, size, svg, progress=sys.stderr.isatty()):
            raise typer.Exit(1)
