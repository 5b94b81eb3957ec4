"""`minllm bench serve`: checks all options, opens the model, measures, reports."""

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from minllm.bench.generate import check_model, opened_model
from minllm.bench.record import console, new_record, write_json
from minllm.bench.serving.arguments import check_engine_options, checked_rates, chosen_requests, load_peer
from minllm.bench.serving.arrivals import check_burstiness
from minllm.bench.serving.comparisons import COMPARISONS, ServingBench
from minllm.bench.serving.metrics import calculate_metrics, parse_goodput
from minllm.bench.serving.plots import checked_folder, file_prefix, write_plots
from minllm.bench.serving.profile.report import table as profile_table
from minllm.bench.serving.profile.report import write_pictures
from minllm.bench.serving.profile.run import check_profiler
from minllm.bench.serving.report import COLUMNS, HEADINGS, Result, detail_table, json_line, rows, summary_line
from minllm.bench.serving.run import Engine
from minllm.bench.serving.simulated_gpu import check_simulation, simulated_gpu
from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.bench.serving.workload import longest
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.machine import driver
from minllm.models.shapes import SHAPES


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
    simulate: str | None = None,
    profile: Path | None = None,
    plot: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Measure, print tables and a line of JSON per run, draw into `plot`, write the record.

    options: those of LLM(). simulate: a GPU to simulate, without loading a model. profile: a folder for a trace of the GPU's work. Raises
    InvalidOptionError for wrong values, before a model is loaded.
    """
    check_model(model)
    if compare and against:
        raise InvalidOptionError(f"--compare-{compare} and --against do not go together: measure the peer in a run of its own.")
    check_burstiness(burstiness)
    limits = parse_goodput(goodput)
    chosen = chosen_requests(request_list, dataset_path, num_prompts, input_len, output_len, seed)
    rates = checked_rates(request_rates, chosen.has_arrivals, compare == "policies")
    check_engine_options(options, compare)
    if compare == "concurrency" and max_concurrency is not None:
        raise InvalidOptionError("--max-concurrency does not go with --compare-concurrency, which tries several: drop one of the two.")
    if simulate is not None:
        check_simulation(options, chosen.requests, compare, against)
    peer = load_peer(against)
    device = EngineOptions(device=options.get("device", "auto")).resolved_device()
    if profile is not None:
        check_profiler("cpu" if simulate else device)
        checked_folder(profile, "--profile")
    folder = None if plot is None else checked_folder(plot, "--plot")
    machine = clock = None
    if simulate is not None:
        clock = VirtualClock()
        machine, open_engine = simulated_gpu(model, simulate, clock)

    bench = ServingBench(
        lambda tried: open_engine(options | tried) if simulate else opened_engine(model, options | tried, longest(chosen.requests)),
        case_of(model, chosen.description, options, simulate is not None),
        chosen.requests,
        seed=seed,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        num_warmups=num_warmups,
        limits=limits,
        clock=clock,
        profile=profile,
    )
    report = Report(device, json_file, machine)
    for result in measure(bench, compare, rates, options):
        report.add(result)
    if peer is not None:
        report.results = [*beside_peer(report, bench, peer, model, options)]
    report.finish(folder, profile)


def case_of(model: str, requests: str, options: dict[str, Any], simulated: bool) -> str:
    """The case of a row: the model, the requests as described, and the options that change the engine's memory."""
    weights = ", simulated" if simulated else " (random weights)" if model in SHAPES else ""
    cache, quantization, codes = (options.get(name) for name in ("kv_cache_memory_bytes", "quantization", "kv_cache_dtype"))
    case = f"{model}{weights}, {requests}" + (f", weights in {quantization}" if quantization else "")
    case += f", KV cache of {cache / 1e9:g} GB" if cache else ""
    return case + (f", KV cache in {codes}" if codes not in (None, "auto") else "")


@contextmanager
def opened_engine(model: str, options: dict[str, Any], max_model_len: int | None) -> Iterator[tuple[Engine, int]]:
    """A context with the engine of a model and its vocabulary size; frees the memory of earlier engines first."""
    free_memory(options)
    with opened_model(model, dict(max_num_seqs=None) | options, max_model_len) as llm:
        yield llm.llm_engine, llm.engine.model.config.vocab_size


def free_memory(options: dict[str, Any]) -> None:
    """Return the memory of engines that are no longer used to the driver."""
    gc.collect()
    if EngineOptions(device=options.get("device", "auto")).resolved_device() == "cuda":
        from minllm.runtime.memory import device_memory

        device_memory().trim()


def measure(bench: ServingBench, compare: str | None, rates: Sequence[float | None], options: dict[str, Any]) -> Iterator[Result]:
    """The runs of a comparison, or of one engine at every rate."""
    if compare is not None:
        return COMPARISONS[compare].run(bench, rates)
    return bench.measure(options.get("scheduling_policy", "default"), rates)


class Report:
    """Prints a line per run as soon as it is measured, so that an interrupt loses no measurement; the rest at the end."""

    def __init__(self, device: str, json_file: Path | None, machine: str | None = None):
        self.device, self.json_file, self.results = device, json_file, []
        self.machine = machine  # the simulated machine; None: this machine
        self.out = console(json_file)

    def add(self, result: Result) -> None:
        """Print a run, and write all runs so far to the record if that is a file."""
        if not self.results:
            self.print(result.case, COLUMNS.format(*HEADINGS))
        self.results.append(result)
        self.print(summary_line(result.variant, result.rate, result.metrics))
        if self.json_file is not None and str(self.json_file) != "-":
            self.write()

    def print(self, *lines: str) -> None:
        """Print lines as they are."""
        self.out.print(*lines, sep="\n", markup=False)

    def write(self) -> None:
        """Write the record."""
        name = self.machine or (driver.device_name() if self.device == "cuda" else "cpu")
        write_json(self.json_file, new_record(name, {}, [row for result in self.results for row in rows(result)]))

    def finish(self, folder: Path | None, profile: Path | None = None) -> None:
        """Print the details of a single run and a line of JSON per run, draw pictures into the folders, write the record."""
        if len(self.results) == 1:
            self.out.print(detail_table(self.results[0]))
        self.print(*(json_line(result) for result in self.results))
        for result in self.results if profile is not None else ():
            self.out.print(profile_table(result.traced, f"{result.name}, {result.variant}, traced"))
            pictures = write_pictures(result.traced, result.name, profile / file_prefix(result))
            self.print(f"a trace for Perfetto and {len(pictures)} pictures in {profile}")
        if folder is not None:
            self.print(f"{len(write_plots(self.results, folder))} pictures in {folder}")
        if self.json_file is not None:
            self.write()


def beside_peer(report: Report, bench: ServingBench, peer: ModuleType, model: str, options: dict[str, Any]) -> Iterator[Result]:
    """Yields the report's results with the peer's metrics on the same requests at the same rate, printed as they are measured."""
    free_memory(options)
    with peer.opened(model, options.get("dtype", "auto"), report.device, longest(bench.requests)) as engine:
        peer.warm_up(engine, bench.requests_at(math.inf, engine.vocab_size)[: bench.num_warmups])
        for shift, result in enumerate(report.results):
            run = peer.serve(engine, bench.requests_at(result.rate, engine.vocab_size, shift), bench.max_concurrency)
            metrics = calculate_metrics(run, bench.limits)
            report.print(summary_line(peer.NAME, result.rate, metrics))
            yield replace(result, peer=peer.NAME, peer_metrics=metrics)
