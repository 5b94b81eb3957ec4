"""The options of `minllm bench serve`, with the names of vLLM's `bench serve` if it has them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minllm.cli.options import JsonOption, engine, engine_options, takes
from minllm.cli.terminal import user_errors

SIZES = "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes"
SHARED = "device", "dtype", "quantization", "kv_cache_dtype", "enable_prefix_caching", "variant"


@takes(engine(*SIZES, *SHARED, scheduling_policy=None, preemption=None))  # None: a comparison may try all
def bench_serve(
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME|PATH", help="bundled, a directory, or a shape that plan has, with random weights."),
    ] = "bundled",
    dataset_path: Annotated[
        Path | None,
        typer.Option("--dataset-path", "--dataset", metavar="FILE", help="JSONL with prompt_tokens or prompt, output_tokens, arrival."),
    ] = None,
    request_list: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="mixed-prompts, nano-vllm, tensorrt-llm-128-128, -128-2048, -1000-1000 or -2048-128."),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Number of requests. Default: that of the list or file, else 100.", show_default=False)
    ] = None,
    input_len: Annotated[
        str | None, typer.Option(metavar="LENGTHS", help="Tokens per prompt: 512, 100:1024 or 64,256,512; default 128.", show_default=False)
    ] = None,
    output_len: Annotated[
        str | None, typer.Option(metavar="LENGTHS", help="Tokens to generate per request, likewise; default 128.", show_default=False)
    ] = None,
    request_rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests per second; inf, the default, sends all at once. May be repeated for a sweep.", show_default=False),
    ] = None,
    burstiness: Annotated[float, typer.Option(help="1 is a Poisson process, less makes bursts, more makes arrivals even.")] = 1.0,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC:MS", help='Count requests within limits: "ttft:200 tpot:50 e2el:5000".', show_default=False),
    ] = None,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="The most requests sent and unfinished.", show_default=False)] = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Requests served before the measurement.")] = 16,
    seed: Annotated[int, typer.Option(help="Of lengths, token ids and arrivals.")] = 0,
    compare_policies: Annotated[
        bool, typer.Option("--compare-policies", help="Every scheduling policy at each rate. Default: 0.5, 0.8 and 1.1 times capacity.")
    ] = False,
    compare_preemption: Annotated[
        bool, typer.Option("--compare-preemption", help="Every preemption mode, in the cache of --kv-cache-memory-bytes.")
    ] = False,
    compare_concurrency: Annotated[
        bool, typer.Option("--compare-concurrency", help="1 to 256 clients, each with one request at a time: throughput against speed.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="transformers", help="Serve the same requests with transformers too.", show_default=False)
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="The scheduler alone, on step times computed for this GPU; needs none.", show_default=False),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Serve once more under torch's profiler: a trace, the time of each stage.", show_default=False),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw SVG pictures into this folder.", show_default=False)] = None,
    json_file: JsonOption = None,
    **options: Any,
) -> None:
    """Serve requests that arrive over time: throughput, TTFT, TPOT, inter-token latency, goodput (docs: Serving metrics)."""
    with user_errors():
        from minllm.bench.serving import command as benchmark
        from minllm.bench.serving.arguments import chosen_comparison

        given = {name: value for name, value in engine_options(options).items() if value is not None}
        comparisons = dict(policies=compare_policies, preemption=compare_preemption, concurrency=compare_concurrency)
        benchmark.run(
            model, given, request_list=request_list, dataset_path=dataset_path, num_prompts=num_prompts, input_len=input_len,
            output_len=output_len, request_rates=request_rate or (), burstiness=burstiness, goodput=goodput or (),
            max_concurrency=max_concurrency, num_warmups=num_warmups, seed=seed, against=against, simulate=simulate, profile=profile,
            plot=plot, json_file=json_file, compare=chosen_comparison([name for name, wanted in comparisons.items() if wanted]),
        )  # fmt: skip
