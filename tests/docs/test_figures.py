"""Figures of a GPU on the pages are those of docs/results (h200.json and others), to the digits shown; others are listed here.

A figure is a number with a unit of time or of a rate. A row answers for a figure of its own kind: 817 µs is a row of 0.8167 ms. Figures
that a page computes from an equation, or quotes from others, are allowed by page and number; one that is allowed and stands nowhere fails
too. A wrong figure that equals another row's by chance is not found.
"""

import bisect
import json
import re
from pathlib import Path

import pytest

from minllm.machine.hardware import gpu_named
from minllm.models.shapes import named_config
from minllm.planning.card import comparison_rows
from minllm.planning.measured import comparisons
from minllm.planning.plan import Wishes, make_plan
from minllm.planning.predicted import predicted_step_ms

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "docs/results/h200.json").read_text(encoding="utf-8"))
for other in ("h200_earlier", "h200_all_reduce", "h200_ranks", "h200_quantised", "h100_quantised"):
    RECORD["rows"] += json.loads((ROOT / f"docs/results/{other}.json").read_text(encoding="utf-8"))["rows"]
UNITS = {  # unit: (kind, in units of the kind)
    "s": ("s", 1.0), "ms": ("s", 1e-3), "µs": ("s", 1e-6), "TB/s": ("B/s", 1e12), "GB/s": ("B/s", 1e9), "TFLOP/s": ("FLOP/s", 1e12),
    "tokens/s": ("tokens/s", 1.0), "tokens per second": ("tokens/s", 1.0), "tokens/µs": ("tokens/s", 1e6),
}  # fmt: skip
LONGEST_FIRST = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
FIGURE = re.compile(rf"(?<![\w.,-])(\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?) ({LONGEST_FIRST})(?![\w/])")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = re.compile(r"<!-- results: begin -->.*?<!-- results: end -->", re.DOTALL)  # tests of their own compare these tables
TRACE = "read off the trace of the served run, commit 0546c2e"
LAYER = "read off the traces of a layer in the page's table"
PRINTED = "printed by a run that left no row, on one H200"
ELSEWHERE = {  # page: {figure: why no row carries it}
    "api.md": {"10 s": "the engine's own time limit"},
    "calculator.md": dict.fromkeys(["112 TFLOP/s", "22.2 ms", "900 GB/s"], "an invented GPU, and its arithmetic"),
    "command-line.md": {
        **dict.fromkeys(["2.31 ms", "10.96 ms", "16.71 ms"], "what the planner computes"),
    },
    "dead-ends.md": {
        **dict.fromkeys(["1.3 µs", "51.9 µs", "1,772 µs", "4,520 µs", "4,554 µs"], PRINTED),
        **dict.fromkeys(["1,943 µs", "2,783 µs", "3,571 µs"], PRINTED),
        **dict.fromkeys(["2.32 ms", "36.4 µs", "54.0 µs", "59.4 µs", "320.1 µs"], PRINTED.replace("H200", "H100")),
        **dict.fromkeys(["33.4 µs", "172 µs", "24.6 ms"], PRINTED.replace("one H200", "two H200s")),
    },
    "gpus.md": {
        "382 GB/s": "a copy between two H200s, 2026-11-29", "313 GB/s": "bytes over times, of two rows",
        **dict.fromkeys(["26.3 ms", "27.7 ms"], PRINTED.replace("one H200", "two H200s")),
    },
    "frameworks.md": {
        **dict.fromkeys(["71.9 s", "34.9 s", "19 s", "382 ms", "59.7 ms", "8.46 ms", "49.4 ms"], "others', by its table"),
        **dict.fromkeys(["3.49 ms", "0.575 ms"], "a floor: bytes over the rate of a copy"),
        "27.5 s": "TGI's own figure", "7.8 s": PRINTED, "8.8 s": PRINTED, "3,533 tokens/s": PRINTED,
    },
    "literature.md": dict.fromkeys(["230 TFLOP/s", "616 TFLOP/s"], "the paper's figure"),
    "quantised-weights.md": {
        **dict.fromkeys(["0.3 µs", "642 µs", "3.02 TB/s"], PRINTED.replace("H200", "H100")),
        **dict.fromkeys(["9.9 s", "12.2 s", "15.1 s", "20.4 s"], PRINTED),
    },
    "serve.md": dict.fromkeys(["19,849 tokens/s", "19,897 tokens/s"], PRINTED),
    "serving-load.md": {"60 ms": "the time to which the recorder holds a step"},
    "serving-metrics.md": {
        "0.69 s": TRACE, "30,293 tokens/s": PRINTED, "17 s": PRINTED, "174 µs": LAYER, "641 TFLOP/s": LAYER,
        **dict.fromkeys(["2,484 µs", "2,700 µs", "3,415 µs", "31.9 ms", "44.9 µs", "240 TFLOP/s", "1,300 TFLOP/s"], PRINTED),
    },
    "two-roofs.md": {"641 TFLOP/s": "as on the page of serving metrics"},
    "speculation.md": {
        **dict.fromkeys(["128.6 tokens/s", "158 tokens/s"], "others' figures"),
        **dict.fromkeys(["45.6 ms", "55.3 ms"], PRINTED),
    },
    "split-decode.md": dict.fromkeys(["1.2 µs", "247.5 µs"], PRINTED),
}  # fmt: skip


def recorded():
    """{kind: the recorded numbers of this kind, ascending}."""
    found = {"B/s": [RECORD["ceilings"]["copy_tb_s"] * 1e12], "FLOP/s": [RECORD["ceilings"]["bf16_tflops"] * 1e12], "s": []}
    for row in RECORD["rows"]:
        kind, scale = UNITS.get(row["unit"], (None, None))
        if kind:
            found.setdefault(kind, []).extend(row[name] * scale for name in ("value", "peer_value", "limit") if row[name])
        found["s"] += [1e-3 * value for name, value in row.get("metrics", {}).items() if name.endswith("_ms")]
    return {kind: sorted(numbers) for kind, numbers in found.items()}


NUMBERS = recorded()


def is_recorded(number, unit):
    """Whether a recorded number rounds to this one in the digits shown."""
    kind, scale = UNITS[unit]
    digits = len(number.partition(".")[2])
    value, half = float(number.replace(",", "")), 0.5 * 10**-digits
    low, high = (value - half) * scale * (1 - 1e-9), (value + half) * scale * (1 + 1e-9)
    numbers = NUMBERS[kind]
    at = bisect.bisect_left(numbers, low)
    return at < len(numbers) and numbers[at] <= high


def unrecorded(text):
    """The figures of a page that no row carries; a figure may begin on one line and end on the next."""
    lines = GENERATED.sub("", text).replace("\n", " ")
    return {match.group(0) for match in FIGURE.finditer(lines) if not is_recorded(*match.groups())}


def test_the_measured_line_of_the_plan_is_what_the_planner_prints():
    (line,) = re.findall(r"^llama-3.1-8b +(decode step: .*)$", (ROOT / "docs/command-line.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert line in dict(comparison_rows(comparisons("NVIDIA H200", named_config("llama-3.1-8b")))).values()


def test_the_steps_with_experts_are_what_the_planner_computes():
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+)(?: of 128)? \| ([\d.]+) ms \| ([\d.]+) ms \| [\d.]+ ms \|$", page, re.MULTILINE)
    config, (_, gpu) = named_config("qwen3-30b-a3b"), gpu_named("h200")
    for batch, *shown in rows:
        wishes = Wishes(batch=int(batch), context=1024)
        plan = make_plan(config, gpu, wishes)
        predicted = predicted_step_ms(config, gpu, wishes)
        assert shown == [f"{plan.touched_experts:.1f}".removesuffix(".0"), f"{plan.decode.floor_ms:.2f}", f"{predicted:.2f}"]
    assert [batch for batch, *_ in rows] == ["1", "16", "64"]


def test_a_figure_that_no_row_carries_is_found():
    row, *_ = [row for row in RECORD["rows"] if row["benchmark"] == "decode" and row["case"].startswith("llama-3.1-8b")]
    assert not unrecorded(f"{row['value']} tokens/s") and unrecorded(f"{row['value'] + 0.2:.1f} tokens/s, 0.0123 µs") != set()
    assert unrecorded("1,234.567 tokens/s, 3.456 TB/s. 12345.67 ms") == {"1,234.567 tokens/s", "3.456 TB/s", "12345.67 ms"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_is_recorded_or_has_a_source(page):
    assert unrecorded(page.read_text(encoding="utf-8")) == set(ELSEWHERE.get(page.name, {}))
