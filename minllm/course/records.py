"""Recorded measurements, shown by lessons without a GPU, always with machine and date.

The records are docs/results/*.json of the repository; an installed package has them in minllm/data/results.
"""

import functools
import json
from dataclasses import dataclass
from importlib.resources import files

from minllm.errors import LessonError


@dataclass(frozen=True)
class Measurement:
    """One row of a record, and where it was measured. `limit` and `peer_value` are also in `unit`, or None."""

    benchmark: str
    case: str
    variant: str
    value: float
    unit: str
    peer: str | None
    peer_value: float | None
    limit: float | None
    of_limit: float | None
    machine: str
    date: str

    @property
    def label(self) -> str:
        """For captions: "recorded on an NVIDIA H200, 2026-11-20"."""
        return f"recorded on an {self.machine}, {self.date}"

    def __str__(self) -> str:
        share = "" if self.of_limit is None else f", {100 * self.of_limit:.0f} % of the limit"
        return f"{self.benchmark}, {self.case}, {self.variant}: {self.value:,.4g} {self.unit}{share} ({self.label})"


@functools.cache
def load_record(name: str = "h200") -> dict:
    """The whole record, as minllm.bench.record describes it: device, date, ceilings {"copy_tb_s", "bf16_tflops"}, rows."""
    return json.loads(files("minllm").joinpath(f"data/results/{name}.json").read_text(encoding="utf-8"))


def recorded(benchmark: str, case: str = "", variant: str | None = None, record: str = "h200") -> list[Measurement]:
    """The rows of `benchmark` whose case contains `case`, of one variant or of all, in the record's order.

    Raises LessonError if there are none, so that a lesson cannot lose a figure unnoticed.
    """
    whole = load_record(record)
    found = [
        row
        for row in whole["rows"]
        if row["benchmark"] == benchmark and case in row["case"] and (variant is None or row["variant"] == variant)
    ]
    if not found:
        known = sorted({f"{row['benchmark']} | {row['case']} | {row['variant']}" for row in whole["rows"]})
        raise LessonError(
            f"No recorded row for benchmark {benchmark!r}, case {case!r}, variant {variant!r}. There are: {'; '.join(known)}."
        )
    fields = ("benchmark", "case", "variant", "value", "unit", "peer", "peer_value", "limit", "of_limit")
    return [Measurement(*(row[name] for name in fields), machine=whole["device"], date=date_of(row, whole)) for row in found]


def date_of(row: dict, whole: dict) -> str:
    """The date of a row's measurement: the record's, unless the row names an earlier run."""
    return row["earlier"].partition(",")[0] if row.get("earlier") else whole["date"]
