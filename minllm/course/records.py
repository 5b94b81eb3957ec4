"""Recorded measurements for lessons without a GPU, always with machine, date, commit and the command that measures them.

The records are docs/results/*.json of the repository; an installed package has them in minllm/data/results. A row is *older* if its kernel
has changed since it was measured: it may not be compared with a newer one (`comparable`, `parts_of`).
"""

import functools
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from minllm.bench.row_command import commands_of
from minllm.errors import LessonError

PAGE_WIDTH = 88  # columns of a cell's output that fit on a page without scrolling
NOTEBOOK = "ipykernel_"  # part of the file name of a notebook cell's code
_taken: dict[str, dict["Measurement", None]] = {}  # {cell: the rows that it took}


@dataclass(frozen=True)
class Measurement:
    """One row of a record, with machine, date and commit.

    `limit` and `peer_value` are also in `unit`, or None. metrics: what the same run measured besides, by name.
    """

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
    commit: str
    key: str | None
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    cell: str = field(default="", compare=False)  # the cell of a lesson that shows this row beside others

    @property
    def is_older(self) -> bool:
        """Whether its kernel has changed since the measurement."""
        from minllm.bench.kernel_keys import is_older  # reads the source of all kernels of a stage

        return is_older(self.benchmark, self.variant, self.key, self.case)

    @property
    def label(self) -> str:
        """For captions: "recorded by minllm bench launch on an NVIDIA H200, 2026-11-20, commit 5f46087".

        It covers this row and the others that its cell took.
        """
        return label_of(_taken.get(self.cell, [self]))

    @property
    def lines(self) -> str:
        """The label, wrapped and indented for printing in a cell."""
        return wrapped(self.label)

    def __str__(self) -> str:
        share = "" if self.of_limit is None else f", {100 * self.of_limit:.0f} % of the limit"
        return f"{self.benchmark}, {self.case}, {self.variant}:\n  {digits(self.value)} {self.unit}{share}\n{self.lines}"


def digits(value: float) -> str:
    """A value as text with four significant digits, or with all digits of its integer part from 10,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


def label_of(rows: Iterable[Measurement]) -> str:
    """The commands, machine, dates and commits of rows."""
    rows = list(rows)
    commands = " and ".join(commands_of([vars(row) for row in rows]))
    runs = dict.fromkeys(f"{row.date}, commit {row.commit[:7]}" for row in rows)
    return f"recorded by {commands} on an {rows[0].machine}, {' and '.join(runs)}"


def listing(rows: Iterable[Measurement]) -> str:
    """Rows as text for printing in a cell: a line per row, or two if too long for a page, then their label, wrapped."""
    rows = list(rows)
    names = [f"{row.case}, {row.variant}" for row in rows]
    shares = ["" if row.of_limit is None else f"  {100 * row.of_limit:.0f} % of the limit" for row in rows]
    values = [f"{digits(row.value):>8} {row.unit}{share}" for row, share in zip(rows, shares)]
    width, widest = max(map(len, names)), max(map(len, values))
    lines = [f"{name:{width}}  {value}" for name, value in zip(names, values)]
    if width + widest + 2 > PAGE_WIDTH:
        lines = [f"{textwrap.fill(name, PAGE_WIDTH - 2, subsequent_indent='  ')}\n  {value}" for name, value in zip(names, values)]
    return "\n".join([*lines, wrapped(label_of(rows))])


def wrapped(label: str) -> str:
    """A label in lines that fit a page."""
    return textwrap.fill(label, 80, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


@functools.cache
def load_record(name: str = "h200") -> dict:
    """The whole record in the format of minllm.bench.record: device, date, ceilings {"copy_tb_s", "bf16_tflops"}, rows."""
    return json.loads(files("minllm").joinpath(f"data/results/{name}.json").read_text(encoding="utf-8"))


def recorded(benchmark: str, case: str = "", variant: str | None = None, record: str = "h200", listed: bool = False) -> list[Measurement]:
    """The rows of `benchmark` whose case contains `case`, of one variant or of all, in the record's order.

    Raises LessonError if there are none, so that a lesson cannot lose a figure unnoticed. All rows that a cell takes must be `comparable`,
    because it shows them side by side. listed: True if the cell only lists them, each with its label.
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
    place = sys._getframe(1).f_code.co_filename
    cell = place if NOTEBOOK in place and not listed else ""
    rows = [Measurement(**{name: row[name] for name in Measurement.__match_args__ if name in row}, cell=cell) for row in found]
    if cell:
        _taken[cell] = {**_taken.get(cell, {}), **dict.fromkeys(rows)}
        comparable(*_taken[cell])
    return rows


def comparable(*rows: Measurement) -> tuple[Measurement, ...]:
    """The same rows, if a figure or a sentence may compare them.

    Rows of one commit are comparable, and so are rows that are not older. Raises LessonError for any others: with an older row of another
    commit, a difference may be one between two states of a kernel.
    """
    if len({row.commit for row in rows}) > 1 and any(row.is_older for row in rows):
        listed = "\n".join(map(str, rows))
        raise LessonError(f"These figures are of different states of the kernels and cannot be compared:\n{listed}\nRecord them again.")
    return rows


def parts_of(whole: Measurement, whole_ms: float, parts: Mapping[str, tuple[Measurement, float]]) -> float:
    """The rest of a step of `whole_ms` milliseconds without its parts, {name: (its row, milliseconds)}.

    Raises LessonError if a part was measured with a kernel that the engine does not launch, if rows are not `comparable`, or if the
    parts exceed the whole.
    """
    from minllm.bench.kernel_keys import is_first_rung

    for name, (row, _) in parts.items():
        if is_first_rung(row.benchmark, row.variant):
            raise LessonError(f"{name} was measured with {row.variant}, which the engine does not launch.")
    comparable(whole, *(row for row, _ in parts.values()))
    rest = whole_ms - sum(ms for _, ms in parts.values())
    if rest < 0:
        listed = " + ".join(f"{name} {ms:.3f}" for name, (_, ms) in parts.items())
        raise LessonError(f"The parts exceed the whole by {-rest:.3f} ms: {listed} > {whole_ms:.3f}.")
    return rest
