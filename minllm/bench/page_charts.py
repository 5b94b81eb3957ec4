"""The charts of the reference pages, drawn from docs/results: one per page, above its tables.

Rows are times on the GPU that the caption names. A page shows a chart as an SVG file in the repository, and in its own colours on the site.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable

from minllm.bench.frameworks_table import COMPARED, VLLM_DATE, ratio, recorded_row
from minllm.bench.results_table import SHORT, recorded_in, share
from minllm.bench.serving.comparisons import CLIENTS
from minllm.figures.bars import Bar, bars
from minllm.figures.curves import curves
from minllm.figures.figure import NARROW, Figure

KERNELS = {"matmul": 0, "matmul, quantised": 1, "prefill attention": 2, "decode attention": 3, "decode attention, quantised": 4}
FORMATS = {"bfloat16": "bfloat16", "int8": "int8", "int4 in groups of 128": "int4_g128", "nf4": "nf4", "Q8_0": "Q8_0"}
PRODUCT = re.compile(r"(?P<rows>\d+) rows? x (?P<shape>\d+x\d+), (?P<format>.+)$")
MOST_ROWS = 256  # rows of x; the tensor cores limit all formats at 2,048


def runs(rows: Iterable[dict]) -> str:
    """The machine and the days of some rows."""
    rows = list(rows)
    days = sorted({row["date"] for row in rows})
    return f"One {rows[0]['machine']}, {days[0] if len(days) == 1 else f'{days[0]} to {days[-1]}'}"


def vllm_chart(record: dict) -> Figure:
    """minllm's speed over the faster vLLM's in every case of the table, with a line where both are equally fast."""
    rows = {compared: row for compared in COMPARED if (row := recorded_row(record, compared))}
    return bars(
        [Bar(one.name.replace(" shape,", ","), round(ratio(one, row), 2), colour="8B" in one.name) for one, row in rows.items()],
        unit="x",
        title="Speed of minllm over the faster vLLM",
        limit=1.0,
        limit_name="equally fast:",
        caption=f"{runs(rows.values())}. vLLM: {VLLM_DATE}. Above 1, minllm is faster.",
        width=NARROW,
    )


def roof_chart(record: dict) -> Figure:
    """The share of the hardware's limit that each kernel of the short table reaches, where a limit is recorded."""
    named = [(name.partition(" (`"), recorded_in(record, benchmark, case, variant)) for benchmark, case, variant, name in SHORT]
    shown = [
        (name, variant.rstrip("`)"), row) for (name, _, variant), row in named if row and row["benchmark"] in KERNELS and row["of_limit"]
    ]  # fmt: skip
    return bars(
        [Bar(name, round(100 * share(row, record)), variant, KERNELS[row["benchmark"]]) for name, variant, row in shown],
        unit="%",
        title="Share of the hardware's limit, by kernel",
        limit=100.0,
        caption=f"{runs(row for *_, row in shown)}. The limit is a copy's bandwidth, or cuBLAS's FLOP/s.",
        width=NARROW,
    )


def pareto_chart(record: dict) -> Figure | None:
    """Tokens per second of one user against those of the GPU, a line per format of weights, as `vllm bench sweep plot_pareto` has the axes.

    A point is a number of clients; those that another one beats in both rates are left out. None if the record has no such runs.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    runs_of = [row for row in record["rows"] if row["benchmark"] == "serving throughput" and row["variant"].startswith(CLIENTS)]
    for row in runs_of:
        form = re.search(r"weights in (\w+)", row["case"])
        points[form[1] if form else "bfloat16"].append((row["value"] / int(row["variant"].split()[1]), row["value"]))
    if not points:
        return None
    return curves(
        {name: frontier(found) for name, found in points.items()}, "tokens/s per user", "tokens/s per GPU",
        "Llama 3.1 8B: speed for each user against speed for all", log_x=True, log_y=True,
        caption=f"{runs(runs_of)}. Prompts and answers of 128 tokens; a point is a number of clients, from "
        f"{min(int(row['variant'].split()[1]) for row in runs_of)} to {max(int(row['variant'].split()[1]) for row in runs_of)}. "
        "Up and to the right is better.",
    )  # fmt: skip


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    best: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best[::-1]


def layer_times(record: dict) -> dict[str, list[tuple[int, float]]]:
    """{format: [(rows of x, µs), ...]} of the four GEMMs of a layer of an 8B model, each with the fastest kernel recorded."""
    fastest: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in record["rows"]:
        match = PRODUCT.match(row["case"]) if row["benchmark"] == "matmul, quantised" else None
        if match and match["format"] in FORMATS:
            shapes = fastest[FORMATS[match["format"]], int(match["rows"])]
            shapes[match["shape"]] = min(row["value"], shapes.get(match["shape"], row["value"]))
    times = sorted((rows, name, math.fsum(shapes.values())) for (name, rows), shapes in fastest.items() if len(shapes) == 4)
    return {name: [(rows, time) for rows, one, time in times if one == name] for name in FORMATS.values()}


def formats_chart(record: dict) -> Figure:
    """Time over rows of x, a line per format of weights."""
    rows = (row for row in record["rows"] if row["benchmark"] == "matmul, quantised")
    series = {name: [(count, time) for count, time in points if count <= MOST_ROWS] for name, points in layer_times(record).items()}
    return curves(
        series, "rows of x: sequences in a decode step", "µs", "The four GEMMs of one layer of an 8B model, by format of weights",
        log_x=True, caption=f"{runs(rows)}. Lower is faster.",
    )  # fmt: skip
