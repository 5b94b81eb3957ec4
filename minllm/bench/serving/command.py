"""`minllm bench serve`: check everything that was asked for, open the model, measure, report."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from minllm.bench.generate import check_model, opened_model
from minllm.bench.record import new_record, write_json
from minllm.bench.serving.arrivals import check_burstiness, check_rate
from minllm.bench.serving.comparisons import (
    MAX_NUM_SEQS,
    POLICIES,
    PREEMPTIONS,
    ServingBench,
    compare_policies,
    compare_preemption,
    sweep_max_num_seqs,
)
from minllm.bench.serving.metrics import calculate_metrics, parse_goodput
from minllm.bench.serving.plots import checked_folder, write_plots
from minllm.bench.serving.report import Result, detail_table, json_line, rows, summary
from minllm.bench.serving.run import Engine
from minllm.bench.serving.trace import read_trace
from minllm.bench.serving.workload import BenchRequest, Lengths, Workload, longest, named_list
from minllm.engine.option_help import check_names
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.machine import driver
from minllm.models.shapes import SHAPES

NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 100, "128", "128"
COMPARISONS: dict[str, tuple[str, Sequence[Any], Callable[..., list[Result]]]] = {  # name: (option of LLM(), its values, the comparison)
    "policies": ("scheduling_policy", POLICIES, compare_policies),
    "preemption": ("preemption", PREEMPTIONS, compare_preemption),
    "max-num-seqs": ("max_num_seqs", MAX_NUM_SEQS, sweep_max_num_seqs),
}


@dataclass(frozen=True)
class Requests:
    """The requests to serve, described in words. has_arrivals: a trace says when they arrive."""

    description: str
    requests: list[BenchRequest]
    has_arrivals: bool = False


def chosen_requests(
    request_list: str | None, dataset_path: Path | None, num_prompts: int | None, input_len: str | None, output_len: str | None, seed: int
) -> Requests:
    """The requests that the options describe: a named list, a file, or random lengths. Raises InvalidOptionError and OSError."""
    sources = {"--request-list": request_list, "--dataset-path": dataset_path, "--input-len or --output-len": input_len or output_len}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise InvalidOptionError(f"{given[0]} and {given[1]} both say which requests to send: give one of them.")
    if dataset_path is not None:
        requests, has_arrivals = read_trace(dataset_path, seed, num_prompts)
        return Requests(f"{dataset_path.name}, {len(requests)} requests", requests, has_arrivals)
    if request_list is not None:
        workload = named_list(request_list, num_prompts)
        return Requests(f"{request_list}, {workload.num_prompts} requests", workload.requests(seed))
    lengths = Lengths.parse(input_len or INPUT_LEN, "--input-len"), Lengths.parse(output_len or OUTPUT_LEN, "--output-len")
    workload = Workload(num_prompts or NUM_PROMPTS, *lengths)
    return Requests(str(workload), workload.requests(seed))


def checked_rates(given: Sequence[float], has_arrivals: bool, compares_policies: bool) -> list[float]:
    """The rates to offer; [inf] by default, and none for a comparison of policies, which then chooses them itself."""
    if given and has_arrivals:
        raise InvalidOptionError("--request-rate does not go with a --dataset-path whose lines have an arrival: drop one of the two.")
    for rate in given:
        check_rate(rate)
    return list(given) or ([] if compares_policies and not has_arrivals else [math.inf])


def check_engine_options(options: dict[str, Any], compare: str | None) -> None:
    """InvalidOptionError unless LLM() takes these options, and every value that the comparison tries."""
    name, values, _ = COMPARISONS[compare] if compare else ("", (), None)
    if name in options:
        option = "--" + name.replace("_", "-")
        raise InvalidOptionError(f"{option} does not go with --compare-{compare}, which tries several: drop one of the two.")
    if compare == "preemption" and "kv_cache_memory_bytes" not in options:
        raise InvalidOptionError("--compare-preemption needs --kv-cache-memory-bytes: nothing is preempted while the cache has room.")
    for tried in [{name: value} for value in values] or [{}]:
        check_names(options | tried)
        EngineOptions(**(options | tried))


def chosen_comparison(names: Sequence[str]) -> str | None:
    """The one comparison that was asked for, None without any; InvalidOptionError for several."""
    if len(names) > 1:
        raise InvalidOptionError(f"--compare-{names[0]} and --compare-{names[1]} do not go together: give one of them.")
    return names[0] if names else None


def load_peer(against: str | None) -> ModuleType | None:
    """The module of the peer engine; None without one. Raises InvalidOptionError if it is unknown or not installed."""
    if against is None:
        return None
    if against != "transformers":
        raise InvalidOptionError(f"--against {against} is not allowed: it takes transformers.")
    try:
        from minllm.bench.serving import transformers_peer
    except ImportError as error:
        raise InvalidOptionError(
            f"--against transformers needs PyTorch and transformers 5 ({error}): pip install 'minllm[bench]', or leave the option out."
        ) from None
    return transformers_peer


def run(
    model: str,
    options: dict[str, Any],
    *,
    request_list: str | None = None,
    dataset_path: Path | None = None,
    num_prompts: int | None = None,
    input_len: str | None = None,
    output_len: str | None = None,
    request_rates: Sequence[float] = (),
    burstiness: float = 1.0,
    goodput: Sequence[str] = (),
    max_concurrency: int | None = None,
    num_warmups: int = 16,
    seed: int = 0,
    compare: str | None = None,
    against: str | None = None,
    plot: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Measure, print tables and a line of JSON per run, draw into `plot`, write the record. `options` are those of LLM().

    Wrong values are refused before a model is loaded.
    """
    check_model(model)
    if compare and against:
        raise InvalidOptionError(f"--compare-{compare} and --against do not go together: measure the peer in a run of its own.")
    check_burstiness(burstiness)
    limits = parse_goodput(goodput)
    chosen = chosen_requests(request_list, dataset_path, num_prompts, input_len, output_len, seed)
    rates = checked_rates(request_rates, chosen.has_arrivals, compare == "policies")
    check_engine_options(options, compare)
    peer = load_peer(against)
    folder = None if plot is None else checked_folder(plot)
    device = EngineOptions(device=options.get("device", "auto")).resolved_device()

    weights = " (random weights)" if model in SHAPES else ""
    bench = ServingBench(
        lambda tried: opened_engine(model, options | tried, longest(chosen.requests)),
        f"{model}{weights}, {chosen.description}",
        chosen.requests,
        seed=seed,
        burstiness=burstiness,
        keeps_arrivals=chosen.has_arrivals,
        max_concurrency=max_concurrency,
        num_warmups=num_warmups,
        limits=limits,
    )
    results = measure(bench, compare, rates, options)
    if peer is not None:
        results = beside_peer(results, bench, peer, model, options, device)
    report(results, device, folder, json_file)


@contextmanager
def opened_engine(model: str, options: dict[str, Any], max_model_len: int | None) -> Iterator[tuple[Engine, int]]:
    """The engine of a model, and the size of its vocabulary; its memory is free again afterwards."""
    with opened_model(model, dict(max_num_seqs=EngineOptions.max_num_seqs) | options, max_model_len) as llm:
        yield llm.llm_engine, llm.engine.model.config.vocab_size
    gc.collect()  # frees gigabytes for the next engine


def measure(bench: ServingBench, compare: str | None, rates: Sequence[float], options: dict[str, Any]) -> list[Result]:
    """The runs of a comparison, or of one engine at every rate."""
    if compare is not None:
        return COMPARISONS[compare][2](bench, rates)
    return bench.measure(options.get("scheduling_policy", "default"), rates)


def beside_peer(
    results: Sequence[Result], bench: ServingBench, peer: ModuleType, model: str, options: dict[str, Any], device: str
) -> list[Result]:
    """The results, each with the peer's metrics on the same requests at the same rate."""
    found = []
    with peer.opened(model, options.get("dtype", "auto"), device, longest(bench.requests)) as engine:
        peer.warm_up(engine, bench.requests_at(math.inf, engine.vocab_size)[: bench.num_warmups])
        for shift, result in enumerate(results):
            run = peer.serve(engine, bench.requests_at(result.rate, engine.vocab_size, shift), bench.max_concurrency)
            found.append(replace(result, peer=peer.NAME, peer_metrics=calculate_metrics(run, bench.limits)))
    return found


def report(results: Sequence[Result], device: str, folder: Path | None, json_file: Path | None) -> None:
    """Print the tables and lines of JSON, draw the pictures, write the record."""
    out = Console(highlight=False, soft_wrap=True, stderr=str(json_file) == "-")  # with "--json -" only the record goes to standard output
    if len(results) == 1:
        out.print(detail_table(results[0]))
    if len(results) > 1 or results[0].peer:
        out.print(*summary(results), sep="\n", markup=False)
    for result in results:
        out.print(json_line(result), markup=False)
    if folder is not None:
        out.print(f"{len(write_plots(results, folder))} pictures in {folder}", markup=False)
    if json_file is not None:
        name = driver.device_name() if device == "cuda" else "cpu"
        write_json(json_file, new_record(name, {}, [row for result in results for row in rows(result)]))
