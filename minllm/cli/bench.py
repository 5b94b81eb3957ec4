"""`minllm bench`: measurements of this machine, each implemented in a file of minllm/bench."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minllm.cli.bench_serve import bench_serve
from minllm.cli.options import JsonOption, engine, engine_options, refuse_idle, takes
from minllm.cli.terminal import output_file, user_errors

REPORT = Path("report.json")
bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine.")
bench_app.command("serve")(bench_serve)


@bench_app.command("generate")
@takes(engine("device", "dtype", "variant"))
def bench_generate(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME|PATH",
            help="bundled, a directory, a GGUF file; or a config.json or a shape known to minllm plan, with random weights.",
        ),
    ] = "bundled",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs after the warm-up; the median is reported.")] = 5,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """Time to the first token, and decode speed compared with the memory's limit: one sequence, greedy."""
    with user_errors():
        from minllm.bench import generate as benchmark

        benchmark.run(model, engine_options(options), prompt_tokens=prompt_tokens, tokens=tokens, repeats=repeats, json_file=json_file)


@bench_app.command("kernels")
def bench_kernels(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="STAGE", help="Measure this stage's kernels. May be repeated.", show_default=False)
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="NAME", help="Only rows with this beginning: 'matmul, 8'. May be repeated.", show_default=False),
    ] = None,
    tuning: Annotated[bool, typer.Option("--tuning", help="Also the shapes and variants that the record does without.")] = False,
    against: Annotated[str | None, typer.Option(metavar="torch", help="Measure PyTorch's kernels beside ours.", show_default=False)] = None,
    json_file: JsonOption = None,
) -> None:
    """Every kernel, checked and then timed, compared with the speed of a copy and of the tensor cores (needs a GPU)."""
    with user_errors():
        from minllm.bench import kernels as benchmark

        if not benchmark.run(only or (), against, json_file, case or (), tuning):
            raise typer.Exit(1)


@bench_app.command("step")
def bench_step(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME", help="A shape of plan; default llama-3.2-1b and llama-3.1-8b.", show_default=False),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences decoded together; default 1. May be repeated.", show_default=False)
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(min=64, help="Keys that a decoded token sees; default 1024. May be repeated.", show_default=False),
    ] = None,
    prompt: Annotated[int, typer.Option(min=0, help="Tokens of the prefill, which is measured with batch 1; 0 leaves it out.")] = 2048,
    parts: Annotated[bool, typer.Option("--parts", help="Also print what each kernel adds to the decode step.")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Also print where a layer's time goes, from a trace by PyTorch's profiler.")
    ] = False,
    batch_invariant: Annotated[bool, typer.Option("--batch-invariant", help="With the kernels of that option of generate.")] = False,
    quantization: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT", help="The layers' weights in this format, as in generate. May be repeated.", show_default=False),
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(metavar="FORMAT", help="The KV cache in this format, as in generate.")] = "auto",
    against: Annotated[
        str | None, typer.Option(metavar="torch", help="Compare the prefill with PyTorch's kernels.", show_default=False)
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """A whole decode step by graph replay and a whole prefill, with random weights, compared with the hardware's limits (needs a GPU)."""
    with user_errors():
        from minllm.bench import step as benchmark

        benchmark.run(
            model or (), batch or (), context or (1024,), prompt, parts, against, json_file, batch_invariant, quantization or (), trace,
            kv_cache_dtype,
        )  # fmt: skip


@bench_app.command("all-reduce")
def bench_all_reduce(
    gpus: Annotated[int, typer.Option(min=2, max=8, help="The number of GPUs.")] = 2,
    against: Annotated[str | None, typer.Option(metavar="torch", help="Measure NCCL beside ours.", show_default=False)] = None,
    json_file: JsonOption = None,
) -> None:
    """The all-reduces between GPUs, by algorithm and message (needs several GPUs that access each other's memory)."""
    with user_errors():
        from minllm.bench import all_reduce as benchmark

        benchmark.run(gpus, against, json_file)


@bench_app.command("ranks")
@takes(engine("device", "dtype", "quantization", "variant"))
def bench_ranks(
    command: typer.Context,
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="A shape of plan, with random weights.")] = "llama-3.1-8b",
    tensor_parallel_size: Annotated[
        list[int] | None, typer.Option(min=1, help="GPUs per stage; default 1 and 2. May be repeated.", show_default=False)
    ] = None,
    pipeline_parallel_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Stages; default 1. May be repeated.", show_default=False)
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences decoded together; default 1 and 64. May be repeated.", show_default=False)
    ] = None,
    context: Annotated[int, typer.Option(min=65, help="Keys that a decoded token sees.")] = 1024,
    prompt: Annotated[int, typer.Option(min=0, help="Tokens of the prefill; 0 leaves it out.")] = 2048,
    throughput: Annotated[bool, typer.Option("--throughput", help="Also serve nano-vllm's list of 256 requests.")] = False,
    context_parallel: Annotated[
        int, typer.Option(min=1, help="Above 1: only decode attention, of one GPU and of as many that share contexts.")
    ] = 1,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """One GPU and several: decode steps, a prompt and a list of requests, beside what plan predicts."""
    with user_errors():
        from minllm.bench import ranks as benchmark
        from minllm.bench import shared_contexts

        given = engine_options(options)
        if context_parallel > 1:
            engines = (one.name for one in engine("device", "dtype", "quantization", "variant"))
            taken = ("context_parallel", "batch", "context", "json_file", *engines)
            refuse_idle(command, "--context-parallel measures decode attention alone", taken)
            shared_contexts.run(context_parallel, given, shared_contexts.Work(batch or (1, 16, 64), context), json_file)
            return
        splits = [benchmark.Split(size, stages) for stages in pipeline_parallel_size or (1,) for size in tensor_parallel_size or (1, 2)]
        benchmark.run(model, given, splits, benchmark.Work(batch or (1, 64), context, prompt, throughput), json_file)


@bench_app.command("report")
def bench_report(
    json_file: Annotated[Path, typer.Option("--json", metavar="FILE", help="The file to write.", callback=output_file)] = REPORT,
) -> None:
    """The core of the recorded results for this GPU, in two minutes, as a file to send (needs a GPU, no PyTorch)."""
    with user_errors():
        from minllm.bench import report as benchmark

        benchmark.run(json_file)


@bench_app.command("launch")
def bench_launch(
    json_file: JsonOption = None,
) -> None:
    """What a launch costs the host, by the way it is made and by what it is given (needs a GPU)."""
    with user_errors():
        from minllm.bench import launch as benchmark

        benchmark.run(json_file)


@bench_app.command("perplexity")
@takes(engine("device", "quantization", dtype="bfloat16"))
def bench_perplexity(
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, draft, a directory, or a GGUF file.")
    ] = "bundled",
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """How well a model predicts the Python source that comes with minllm and that its models have never seen."""
    with user_errors():
        from minllm.bench import perplexity as benchmark

        benchmark.run(model, engine_options(options), json_file)


@bench_app.command("accuracy")
@takes(engine("device", dtype="bfloat16"))
def bench_accuracy(
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Tokens of the text to read; default all, which takes long on a CPU.", show_default=False)
    ] = None,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """What each format of a quantised KV cache costs in quality: perplexity, logit error, and how often the likeliest token stays."""
    with user_errors():
        from minllm.bench import accuracy as benchmark

        benchmark.run(engine_options(options), tokens, json_file)


@bench_app.command("cache")
def bench_cache(
    requests: Annotated[int, typer.Option(min=1, help="Requests in the traffic.")] = 2000,
    json_file: JsonOption = None,
) -> None:
    """Cache policies on one chat traffic: how many sequences fit, how much memory holds no token. Counted; needs no GPU."""
    with user_errors():
        from minllm.bench import cache as benchmark

        benchmark.run(json_file, requests)


@bench_app.command("virtual")
def bench_virtual(
    json_file: JsonOption = None,
) -> None:
    """Decode attention on the virtual cache against a contiguous one (needs a GPU)."""
    with user_errors():
        from minllm.bench import virtual as benchmark

        benchmark.run(json_file)


@bench_app.command("memory")
def bench_memory(
    json_file: JsonOption = None,
) -> None:
    """The modes of memory: allocation by our pool, synchronous and stream-ordered, pinned and pageable copies (needs a GPU)."""
    with user_errors():
        from minllm.bench import memory as benchmark

        benchmark.run(json_file)


@bench_app.command("swap")
def bench_swap(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "llama-3.2-1b",
    most_tokens: Annotated[int, typer.Option(min=64, help="The longest sequence to measure.")] = 16384,
    json_file: JsonOption = None,
) -> None:
    """Whether a preempted sequence is better swapped to the host or computed again: predicted, then measured (needs a GPU)."""
    with user_errors():
        from minllm.bench import swap as benchmark

        benchmark.run(model, json_file, most_tokens)


@bench_app.command("pipeline")
@takes(engine("device", "dtype"))
def bench_pipeline(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "llama-3.2-1b",
    num_prompts: Annotated[int, typer.Option(min=1, help="Text prompts, all at once.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds after the warm-up; the median is reported.")] = 5,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """Tokenise, compute and detokenise on threads of their own, compared with one after the other."""
    with user_errors():
        from minllm.bench.serving import pipeline as benchmark

        benchmark.run(model, engine_options(options), num_prompts=num_prompts, tokens=tokens, repeats=repeats, json_file=json_file)


@bench_app.command("sustained")
def bench_sustained(json_file: JsonOption = None) -> None:
    """GEMMs for seconds on end: what the power limit leaves of their speed (needs a GPU)."""
    with user_errors():
        from minllm.bench import sustained as benchmark

        benchmark.run(json_file)


@bench_app.command("speculation")
@takes(engine("device", "dtype", "batch_invariant"))
def bench_speculation(
    command: typer.Context,
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "bundled",
    draft: Annotated[str, typer.Option(metavar="ngram|NAME|PATH", help="ngram, draft (the bundled one), a shape, a directory.")] = "ngram",
    num_speculative_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="The most drafts per step and sequence (4). May be repeated.", show_default=False)
    ] = None,
    schedule: Annotated[str, typer.Option(metavar="adaptive|constant", help="Verify only drafts that pay, or all of them.")] = "adaptive",
    acceptance: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="For shapes: the rate at which chance accepts drafts (0.8). May be repeated.", show_default=False),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences at once (1). May be repeated.", show_default=False)] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompts.")] = 128,
    tokens: Annotated[int, typer.Option(min=3, help="Tokens to generate.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs after the warm-up; the median is reported.")] = 3,
    counts: Annotated[
        int | None, typer.Option(min=1, metavar="PROMPTS", help="Count tokens per step of all sources on this many prompts, no times.")
    ] = None,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """Decoding with drafts, compared with decoding without and with the prediction."""
    with user_errors():
        if counts is not None:
            refuse_idle(command, "--counts tries every source of drafts", ("counts", "prompt_tokens", "tokens", "json_file"))
            from minllm.bench import speculation_counts

            speculation_counts.run(prompts=counts, prompt_tokens=prompt_tokens, tokens=tokens, json_file=json_file)
            return
        from minllm.bench import speculation as benchmark

        benchmark.run(
            model, engine_options(options), draft=draft,
            num_speculative_tokens=num_speculative_tokens or [4], schedule=schedule, acceptance=acceptance or (), batches=batch or [1],
            prompt_tokens=prompt_tokens, tokens=tokens, repeats=repeats, json_file=json_file,
        )  # fmt: skip


@bench_app.command("startup")
@takes(engine("device"))
def bench_startup(
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a shape, or a directory.")] = "llama-3.1-8b",
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """From the command to the first token: without compiled kernels, and with them."""
    with user_errors():
        from minllm.bench import startup as benchmark

        benchmark.run(model, **engine_options(options), json_file=json_file)


@bench_app.command("simulator")
def bench_simulator(
    repeats: Annotated[int, typer.Option(min=1, help="Runs after the warm-up; the best counts.")] = 3,
    suite: Annotated[bool, typer.Option("--suite", help="Run and time every simulated test too: some minutes, in a clone.")] = False,
    json_file: JsonOption = None,
) -> None:
    """How fast the simulator runs kernels on this processor, compared with the times allowed; exit code 1 beyond it. Needs no GPU."""
    with user_errors():
        from minllm.bench import simulator as benchmark

        if not benchmark.run(repeats, json_file, suite):
            raise typer.Exit(1)
