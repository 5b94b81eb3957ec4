"""The table of docs/frameworks.md: recorded rows of docs/results/h200.json beside vLLM's figures on the same work.

vLLM was measured for this project: versions 0.22.0 and 0.25.1, one NVIDIA H200 (141 GB, driver 580), bfloat16, random weights, greedy, in
process, November 2026; for 0.25.1 the better of its default mode and of one without prefix caching. Rows without a recorded measurement of
minllm are left out.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from minllm.bench.record import origin

VLLM_DEVICE, VLLM_DATE = "NVIDIA H200", "November 2026"
LARGE, SMALL = "llama-3.1-8b (random weights)", "llama-3.2-1b (random weights)"
REQUESTS = "256 requests, all at once"
MILLISECONDS = {"µs": 1e-3, "ms": 1.0}


class Compared(NamedTuple):
    """vLLM's figures by version for some work, and minllm's row: benchmark, prefix of the case, variant (None: any)."""

    name: str
    vllm_0_22: float
    vllm_0_25: float
    benchmark: str
    case: str
    variant: str | None = None

    @property
    def is_rate(self) -> bool:
        """Whether the figures are tokens per second; otherwise they are milliseconds."""
        return self.benchmark == "serving throughput"

    @property
    def fastest(self) -> tuple[str, float]:
        """(version, figure) of the faster vLLM."""
        figures = {"0.22.0": self.vllm_0_22, "0.25.1": self.vllm_0_25}
        return (max if self.is_rate else min)(figures.items(), key=lambda one: one[1])


def decode_step(model: str, batch: int, vllm_0_22: float, vllm_0_25: float) -> Compared:
    """A decode step: vLLM's after prompts of 128 tokens, minllm's as a graph replay at the shortest recorded context."""
    size = "8B" if model == LARGE else "1B"
    name, case = f"{size} shape, decode step, batch {batch}", f"{model}, batch {batch}, "
    return Compared(name, vllm_0_22, vllm_0_25, "decode step", case, "graph replay")


COMPARED = (
    decode_step(LARGE, 1, 4.86, 4.87),
    decode_step(LARGE, 16, 5.12, 5.12),
    decode_step(LARGE, 64, 5.89, 5.92),
    decode_step(LARGE, 256, 10.62, 10.63),
    decode_step(SMALL, 1, 1.30, 2.18),
    decode_step(SMALL, 16, 1.66, 2.49),
    decode_step(SMALL, 64, 2.25, 2.40),
    decode_step(SMALL, 256, 5.16, 4.89),
    Compared("8B shape, prefill of 2,048 tokens", 48.6, 50.5, "whole prefill", f"{LARGE}, 2048 tokens"),
    Compared("8B shape, 256 requests x 128 tokens", 10_600, 10_642, "serving throughput", f"{LARGE}, mixed-prompts, {REQUESTS}"),
    Compared("1B shape, 256 requests x 128 tokens", 36_800, 40_000, "serving throughput", f"{SMALL}, mixed-prompts, {REQUESTS}"),
    Compared("8B shape, nano-vllm's 256 requests", 9_915, 9_972, "serving throughput", f"{LARGE}, nano-vllm, {REQUESTS}"),
    Compared("1B shape, nano-vllm's 256 requests", 31_700, 34_400, "serving throughput", f"{SMALL}, nano-vllm, {REQUESTS}"),
)
HEADER = "| | vLLM 0.22.0 | vLLM 0.25.1 | minllm | minllm over the faster vLLM | row |\n| --- | ---: | ---: | ---: | ---: | --- |"


def frameworks_table(record: dict) -> str:
    """The table of all work with a row in the record, and the machine, date and commit of minllm's measurements."""
    lines = [line(compared, row, record) for compared in COMPARED if (row := recorded_row(record, compared)) is not None]
    return "\n".join([HEADER, *lines, "", f"minllm: one {record['device']}, {record['date']}, commit {record['commit'][:7]}."])


def recorded_row(record: dict, compared: Compared) -> dict | None:
    """The fastest row for some work, that of the shortest context; None if none is recorded."""
    found = [row for row in record["rows"] if is_row_of(row, compared)]
    return (max if compared.is_rate else min)(found, key=lambda row: row["value"], default=None)


def is_row_of(row: Mapping[str, Any], work: Any) -> bool:
    """Whether a row is of the benchmark and the variant (None: any) of some work, and its case begins with that of the work."""
    return row["benchmark"] == work.benchmark and row["case"].startswith(work.case) and work.variant in (None, row["variant"])


def line(compared: Compared, row: dict, record: dict) -> str:
    """One row of the table; the ratio compares speeds."""
    unit = "tokens/s" if compared.is_rate else "ms"
    cells = " | ".join(f"{number(value)} {unit}" for value in (compared.vllm_0_22, compared.vllm_0_25, figure_of(compared, row)))
    place = row["case"].partition("), ")[2]
    return f"| {compared.name} | {cells} | {ratio(compared, row):.2f} | {place}, {row['variant']}{origin(row, record)} |"


def figure_of(compared: Compared, row: dict) -> float:
    """minllm's figure in the unit of vLLM's."""
    return row["value"] if compared.is_rate else row["value"] * MILLISECONDS[row["unit"]]


def ratio(compared: Compared, row: dict) -> float:
    """minllm's speed over that of the faster vLLM."""
    ours, (_, theirs) = figure_of(compared, row), compared.fastest
    return ours / theirs if compared.is_rate else theirs / ours


def number(value: float) -> str:
    """A number as text with three significant figures; from 100 on as an integer."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
