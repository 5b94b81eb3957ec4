"""Pictures of a serving benchmark as SVG files: the batch over time, latency distributions, throughput against latency.

minllm/figures draws them, as in the lessons, so that no other package is needed.
"""

from collections.abc import Sequence
from pathlib import Path

from minllm.bench.serving.metrics import inter_token_latencies
from minllm.bench.serving.report import Result, rate_name
from minllm.errors import InvalidOptionError
from minllm.figures.curves import curves
from minllm.figures.figure import Figure

MOST_POINTS = 160  # per line; more points would only make the file larger

Points = list[tuple[float, float]]


def checked_folder(folder: Path, option: str) -> Path:
    """The folder of an option, created if it is missing. Raises InvalidOptionError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise InvalidOptionError(f"{option} {folder} is a file: give a folder, which is made if it is missing.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw every run, and for several runs throughput against latency; returns the files."""
    figures: dict[str, Figure] = {}
    for result in results:
        prefix = file_prefix(result)
        figures |= {f"{prefix}-{name}": figure for name, figure in (timelines(result) | distributions(result)).items()}
    if len(results) > 1:
        figures |= throughput_against_latency(results)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(figure.svg, encoding="utf-8")
    return paths


def file_prefix(result: Result) -> str:
    """The prefix of a run's file names, such as "split-fuse-4-requests-s"."""
    text = f"{result.variant} {rate_name(result.rate)}"
    return "-".join("".join(letter if letter.isalnum() or letter == "." else " " for letter in text).split())


def timelines(result: Result) -> dict[str, Figure]:
    """Running and waiting requests, cache usage, and tokens per step, over time.

    Empty if all steps have the same time.
    """
    steps = result.run.steps
    if len({step.time for step in steps}) < 2:
        return {}
    seconds, title = "seconds", f"{result.name}, {result.variant}"
    queues = {
        "running": thinned([(step.time, step.num_running) for step in steps]),
        "waiting": thinned([(step.time, step.num_waiting) for step in steps]),
    }
    usage = {"KV cache": thinned([(step.time, 100 * step.kv_cache_usage) for step in steps])}
    tokens = {"output tokens": thinned([(step.time, step.num_tokens) for step in steps])}
    return {
        "batch": curves(queues, seconds, "requests", title, marks=False),
        "kv-cache": curves(usage, seconds, "% of the KV cache", title, marks=False),
        "step-tokens": curves(tokens, seconds, "output tokens per step", title, marks=False),
    }


def distributions(result: Result) -> dict[str, Figure]:
    """Cumulative distributions of latencies, one picture per metric with at least two different values."""
    done = [request for request in result.run.requests if request.succeeded]
    values = {
        "ttft": [request.ttft for request in done],
        "tpot": [request.tpot for request in done if request.tpot is not None],
        "itl": inter_token_latencies(done),
        "e2el": [request.e2el for request in done],
    }
    title = f"{result.name}, {result.variant}"
    return {
        name: curves({name.upper(): cumulative(seconds)}, "ms", f"% at or below, {name.upper()}", title, marks=False)
        for name, seconds in values.items()
        if len(set(seconds)) > 1
    }


def throughput_against_latency(results: Sequence[Result]) -> dict[str, Figure]:
    """Output throughput against p99 TTFT and median TPOT, one line per variant, one point per rate."""
    figures = {}
    for name, latency, statistic in (("throughput-ttft", "ttft", "p99"), ("throughput-tpot", "tpot", "p50")):
        lines: dict[str, Points] = {}
        for result in results:
            distribution = getattr(result.metrics, latency)
            if distribution is not None:
                lines.setdefault(result.variant, []).append((result.metrics.output_throughput, getattr(distribution, statistic)))
        if len({x for points in lines.values() for x, _ in points}) > 1:
            lines = {variant: sorted(points) for variant, points in lines.items()}
            figures[name] = curves(lines, "output tokens/s", f"{latency.upper()} {statistic}, ms", results[0].case)
    return figures


def cumulative(seconds: Sequence[float]) -> Points:
    """(milliseconds, percentage of values at or below), ascending."""
    ordered = sorted(seconds)
    return thinned([(1e3 * value, 100 * (i + 1) / len(ordered)) for i, value in enumerate(ordered)])


def thinned(points: Points) -> Points:
    """At most MOST_POINTS of the points, evenly chosen, with the first and the last."""
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
