"""The record of measurements: one row format for every benchmark, with the machine that was measured.

The format of `docs/results/*.json` and of `--json`:

    {"device", "driver", "date", "commit", "packages": {}, "ceilings": {"copy_tb_s", "bf16_tflops"}, "rows": [...]}

A new measurement replaces the old row; benchmark, case and variant identify a row.
"""

import contextlib
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minllm.machine import driver

PACKAGES = ("minllm", "numba-cuda", "numba", "numpy", "cuda-core", "cuda-bindings", "torch", "transformers", "vllm")


@dataclass(frozen=True)
class Row:
    """One measurement. `peer` was measured in the same run; `limit` is the value that the hardware allows, in the same unit."""

    benchmark: str
    case: str
    variant: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None  # our speed / the peer's
    limit: float | None = None
    of_limit: float | None = None
    error: float | None = None
    peer_error: float | None = None


@dataclass(frozen=True)
class Record:
    """Rows and their circumstances. `ceilings` holds only values measured in the same run, none from a data sheet."""

    device: str
    driver: str
    date: str
    commit: str
    packages: dict[str, str]
    ceilings: dict[str, float | None] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> str:
        """The record on one line."""
        return json.dumps(asdict(self), ensure_ascii=False)


def new_record(device: str, ceilings: dict[str, float | None], rows: list[Row]) -> Record:
    """A record with the current time and this machine; `device` is the GPU's name or "cpu"."""
    return Record(
        device=device if device != "cpu" else f"cpu ({platform.machine()})",
        driver=driver.release() if device != "cpu" else "",
        date=datetime.date.today().isoformat(),
        commit=commit(),
        packages={"python": platform.python_version(), **installed(PACKAGES)},
        ceilings=ceilings,
        rows=rows,
    )


def installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Those of `packages` that are installed, with their versions; of several copies on the path, the imported one."""
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


def merged(old: dict[str, Any] | None, new: Record) -> dict[str, Any]:
    """`new` merged into an older record of the same device: its rows replace older ones, all other fields are the new record's.

    The other rows stay, and get an entry `earlier`, the date and commit of the run that measured them, unless it is the new run.
    """
    result = asdict(new)
    if old is None:
        return result
    same_run = (old["date"], old["commit"]) == (new.date, new.commit)
    kept = old["rows"] if same_run else [row | dict(earlier=row.get("earlier") or run_of(old)) for row in old["rows"]]
    rows = {(row["benchmark"], row["case"], row["variant"]): row for row in [*kept, *result["rows"]]}
    ceilings = {**old["ceilings"], **{name: value for name, value in new.ceilings.items() if value is not None}}
    return {**result, "ceilings": ceilings, "rows": list(rows.values())}


def run_of(record: dict[str, Any]) -> str:
    """Date and commit of a record, as text."""
    return f"{record['date']}, commit {record['commit']}"


def file_name(device: str) -> str:
    """The file name of a device's record: h200.json for "NVIDIA H200"."""
    words = device.lower().replace("nvidia", "").replace("geforce", "").replace("(", "").replace(")", "").split()
    return "-".join(words) + ".json"


def write_json(path: Path, record: Record) -> None:
    """Write the record to `path`, or to standard output for "-"."""
    if str(path) == "-":
        sys.stdout.write(record.to_json() + "\n")
        sys.stdout.flush()
    else:
        path.write_text(record.to_json() + "\n", encoding="utf-8")
