"""The record of measurements: one row format for every benchmark, with the machine that was measured.

The format of `docs/results/*.json` and of `--json`:

    {"device", "driver", "date", "commit", "packages": {}, "ceilings": {"copy_tb_s", "bf16_tflops"}, "rows": [...]}

Benchmark, case and variant identify a row, and a new measurement replaces the old row. Each row names its run (machine, date, commit) and
holds the key of the kernels that it measured (kernel_keys.py), which shows whether they have changed since. The fields above the rows are
those of the newest run. docs/results/h200_step.json holds a single run: a whole step and the kernels in it; h200_earlier.json rows of
earlier runs that pages still quote with their dates, of dead ends for example, and that the record no longer measures.
"""

import contextlib
import datetime
import importlib.metadata
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from minllm.machine import driver

PACKAGES = ("minllm", "numba-cuda", "numba", "numpy", "cuda-core", "cuda-bindings", "torch", "transformers", "vllm")
SIMULATED_DEVICE = ", simulated"  # how the name of a GPU ends whose times are computed


@dataclass(frozen=True)
class Row:
    """One measurement. `peer` was measured in the same run; `limit` is the best value that the hardware allows, in the same unit."""

    benchmark: str
    case: str
    variant: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None  # minllm's speed / the peer's
    limit: float | None = None
    of_limit: float | None = None
    error: float | None = None
    peer_error: float | None = None
    machine: str = ""
    date: str = ""
    commit: str = ""
    key: str | None = None  # None: unknown; "": measures no kernel of this package
    note: str = ""  # a remark on the run, for tables
    low: float | None = None  # the least and the greatest value of several processes; `value` is then their median
    high: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # what the same run measured besides: latencies, shares of a time

    def as_dict(self) -> dict[str, Any]:
        """The fields, without `low`, `high` and `metrics` if a row has none."""
        return {name: value for name, value in asdict(self).items() if name not in ("low", "high", "metrics") or value not in (None, {})}


@dataclass(frozen=True)
class Record:
    """Rows and their circumstances.

    `ceilings` holds only values measured in the same run, none from a data sheet.
    """

    device: str
    driver: str
    date: str
    commit: str
    packages: dict[str, str]
    ceilings: dict[str, float | None] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON has it."""
        return {**asdict(self), "rows": [row.as_dict() for row in self.rows]}

    def to_json(self) -> str:
        """The record on one line."""
        return json.dumps(self.as_dict(), ensure_ascii=False)


def device_of(llm: Any) -> str:
    """The driver's name of an LLM's GPU, or "cpu", for a record."""
    return driver.device_name() if llm.device == "cuda" else "cpu"


def new_record(device: str, ceilings: dict[str, float | None], rows: list[Row]) -> Record:
    """A record with the current time and this machine; `device` is the GPU's name, which may end in SIMULATED_DEVICE, or "cpu"."""
    on_gpu = device != "cpu" and not device.endswith(SIMULATED_DEVICE)
    run = Record(
        device=device if device != "cpu" else f"cpu ({platform.machine()})",
        driver=driver.release() if on_gpu else "",
        date=datetime.date.today().isoformat(),
        commit=commit(),
        packages={"python": platform.python_version(), **installed(PACKAGES)},
        ceilings=ceilings,
    )
    place = dict(machine=run.device, date=run.date, commit=run.commit)
    return replace(run, rows=[replace(row, **place, key=key_for(row) if on_gpu else "") for row in rows])


def key_for(row: Row) -> str | None:
    """The key of the kernels that a row measured on a GPU; None for kernels that the catalogue does not compile."""
    from minllm.bench.kernel_keys import current_key

    return current_key(row.benchmark, row.variant, row.case)


def of_commit(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A record with the commit `name` in all its rows, for runs in which git could not tell it."""
    return {**record, "commit": name, "rows": [{**row, "commit": name} for row in record["rows"]]}


def installed(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of those of `packages` that are installed; of several copies on the path, the imported one's."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit() -> str:
    """The commit of the source tree that minllm runs from, with "+" if files have changed since; "" outside a git checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """`new` merged into an older record of the same device: its rows replace older ones, all other rows and ceilings stay as they are."""
    if old is None:
        return new
    rows = {identity(row): row for row in [*old["rows"], *new["rows"]]}
    ceilings = {**new["ceilings"], **{name: value for name, value in old["ceilings"].items() if value is not None}}
    return {**new, "ceilings": ceilings, "rows": list(rows.values())}


def median_rows(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of several processes that measured the same: of each the one with the median value, with the range if there are several."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in itertools.chain.from_iterable(runs):
        found.setdefault(identity(row), []).append(row)
    in_order = [sorted(rows, key=lambda row: row["value"]) for rows in found.values()]
    middle = [(rows[(len(rows) - 1) // 2], rows[0]["value"], rows[-1]["value"]) for rows in in_order]
    return [{**row, "low": low, "high": high} if len(runs) > 1 else row for row, low, high in middle]


def identity(row: dict[str, Any]) -> tuple[str, str, str]:
    """The fields that identify a row."""
    return row["benchmark"], row["case"], row["variant"]


def origin(row: dict[str, Any], record: dict[str, Any]) -> str:
    """The differences of a row's run from the newest run, for tables: " (2026-11-21, commit 5f46087)"; "" for none."""
    same_run = (row["date"], row["commit"]) == (record["date"], record["commit"])
    words = [] if same_run else [row["date"], f"commit {row['commit'][:7]}"]
    words += [row["note"]] if row.get("note") else []
    return f" ({', '.join(words)})" if words else ""


def write_record(path: Path, whole: dict[str, Any]) -> None:
    """Write a record with one row per line."""
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in whole["rows"])
    head = json.dumps({name: value for name, value in whole.items() if name != "rows"}, ensure_ascii=False, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def file_name(device: str) -> str:
    """The file name of a device's record: h200.json for "NVIDIA H200"."""
    words = device.lower().replace("nvidia", "").replace("geforce", "").replace("(", "").replace(")", "").split()
    return "-".join(words) + ".json"


def stream(json_file: Path | None) -> TextIO:
    """Where a measurement prints: standard error if its record goes to standard output."""
    return sys.stderr if str(json_file) == "-" else sys.stdout


def console(json_file: Path | None) -> Console:
    """The same as a rich Console."""
    return Console(file=stream(json_file), highlight=False, soft_wrap=True)


def write_json(path: Path, record: Record) -> None:
    """Write the record to `path`, or to standard output for "-"."""
    if str(path) == "-":
        sys.stdout.write(record.to_json() + "\n")
        sys.stdout.flush()
    else:
        path.write_text(record.to_json() + "\n", encoding="utf-8")


def write_rows(path: Path | None, device: str, ceilings: dict[str, float | None], rows: list[Row]) -> None:
    """Write the record of these rows as `write_json` does; nothing if `path` is None. device: as for `new_record`."""
    if path is not None:
        write_json(path, new_record(device, ceilings, rows))
