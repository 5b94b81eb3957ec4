"""Measure everything that the pages quote, and write it into docs/results, one file per device. Needs a GPU.

    python tools/record.py                      what this commit has not measured yet, for at most 9 minutes; run it again for the rest
    python tools/record.py --only kernels       the parts whose names begin so, also if they are measured already
    python tools/record.py /tmp/1b.json         record what `minllm bench ... --json /tmp/1b.json` measured earlier
    python tools/record.py --tables             write the tables anew from the record: after a change of a kernel, some rows are older
    python tools/record.py --keys               first compute all keys anew from the rows' commits, after a change of kernel_keys.py;
                                                rows of commits that git does not have keep theirs

A part is a benchmark in a process of its own: kernels and steps (beside PyTorch's, if it is installed), generation, perplexity, and the
lessons' own figures (measure_lessons.py). Its rows replace their older selves as soon as it ends, each with machine, date, commit and
key; all others stay. The record notes the commit of each part, so a run goes on where the one before it stopped. A part that fails is
reported, the others are recorded, and the exit code is 1. The tables in docs/results.md and docs/frameworks.md
follow the record of the H200; headline.py measures the README's rows. Run it from a clean checkout, or name the commit with --commit.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minllm.bench.frameworks_table import frameworks_table
from minllm.bench.kernel_cases import STAGES
from minllm.bench.record import Record, Row, commit, file_name, identity, merged, of_commit, write_record
from minllm.bench.results_table import full_table, replace_between_markers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SHOWN = RESULTS / "h200.json"  # the record whose tables are shown on the pages
RUN_SECONDS = 540
LENGTHS = ("--prompt-tokens", "512", "--tokens", "128")
BENCH = (sys.executable, "-m", "minllm", "bench")
LESSONS = (sys.executable, str(ROOT / "tools" / "measure_lessons.py"))


@dataclass(frozen=True)
class Part:
    """A benchmark. command: writes its record to the path that follows `--json`. seconds: what it usually takes."""

    name: str
    command: tuple[str, ...]
    seconds: int


def parts() -> tuple[Part, ...]:
    """All parts, in order: kernels and steps are measured beside PyTorch if it is installed."""
    against = ("--against", "torch") if importlib.util.find_spec("torch") else ()
    models = [Part(f"generate {name}", (*BENCH, "generate", "--model", name, *LENGTHS), 60) for name in ("bundled", "llama-3.2-1b")]
    return (
        *(Part(f"perplexity {name}", (*BENCH, "perplexity", "--model", name), 40) for name in ("bundled", "draft")),
        Part("accuracy", (*BENCH, "accuracy"), 200),
        *(Part(f"kernels {stage}", (*BENCH, "kernels", "--only", stage, *against), 120) for stage in STAGES),
        Part("step", (*BENCH, "step", *against), 200),
        *models,
        Part("generate llama-3.1-8b", (*BENCH, "generate", "--model", "llama-3.1-8b", *LENGTHS), 120),
        *(Part(f"lessons {name}", (*LESSONS, "--only", name), 60) for name in ("copy", "cache", "splits", "launch")),
        Part("lessons model", (*LESSONS, "--only", "model"), 200),
    )


def run(part: Part, seconds: float) -> tuple[dict | None, bool]:
    """(what a part measured, None if nothing; whether it came to its end) in a process that may take `seconds`."""
    print(f"== {part.name}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        try:
            code = subprocess.run([*part.command, "--json", str(path)], timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {seconds:.0f} s"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    print(f"== {time.monotonic() - start:.1f} s", flush=True)
    if code != 0:
        print(f"FAILED (exit code {code}): {part.name}", file=sys.stderr, flush=True)
    return json.loads(text) if text else None, code == 0


def measure(
    chosen: Sequence[Part], keep: Callable[[dict, str], Path], named: str = "", clock: Callable[[], float] = time.monotonic
) -> tuple[list[str], list[str]]:
    """Run parts and `keep` their records as long as there is time -> (names of those that failed, names of those that were not begun).

    keep: takes a record, and the name of its part or "" if that failed; returns the file. named: the commit, where git cannot tell.
    """
    end, failed = clock() + RUN_SECONDS, []
    for number, part in enumerate(chosen):
        left = end - clock()
        if number and part.seconds > left:
            return failed, [one.name for one in chosen[number:]]
        measured, well = run(part, left)
        if not well:
            failed.append(part.name)
        if measured is not None:
            print(keep(of_commit(measured, named) if named else measured, part.name if well else ""), flush=True)
    return failed, []


def record(measured: dict, results: Path = RESULTS, part: str = "") -> Path:
    """Merge one measured record into its device's file, and return the file. part: its name, to be noted as measured at this commit."""
    return merge_into(results / file_name(measured["device"]), measured, part)


def merge_into(path: Path, measured: dict, part: str = "") -> Path:
    """Merge one measured record into a file, and return the file."""
    rows = [Row(**row) for row in with_runs(measured)["rows"]]
    new = Record(**{**{name: value for name, value in measured.items() if name != "parts"}, "rows": rows})
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    whole = merged(old, new)
    noted = {**(old or {}).get("parts", {}), **({part: new.commit} if part else {})}
    write_record(path, {**whole, "parts": noted} if noted else whole)
    return path


def not_measured(every: Sequence[Part], results: Path, now: str) -> list[Part]:
    """The parts that no record in the folder notes for the commit `now`."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("*.json")]
    return [part for part in every if not any(one.get("parts", {}).get(part.name) == now for one in records)]


def with_runs(record: dict) -> dict:
    """A record whose rows name their runs: those of the format before do so in `earlier`, or not at all if it is the record's own run."""
    rows = []
    for row in record["rows"]:
        date, _, rest = (row.pop("earlier", None) or "").partition(", commit ")
        name, _, note = rest.partition(", ")
        run = dict(machine=record["device"], date=date or record["date"], commit=name or record["commit"], key=None, note=note)
        rows.append(row if row.get("machine") else {**row, **run})
    return {**record, "rows": rows}


def with_keys(record: dict) -> dict:
    """A record whose rows without a key have that of the kernels in their commit's source, if git has the commit."""
    unknown = [row for row in record["rows"] if row["key"] is None]
    names = {row["commit"] for row in unknown}
    found = {name: keys_at(name, [identity(row) for row in unknown if row["commit"] == name]) for name in names}
    rows = [row if row["key"] is not None else {**row, "key": found[row["commit"]].get(identity(row))} for row in record["rows"]]
    return {**record, "rows": rows}


def with_own_keys(record: dict) -> dict:
    """A record whose rows have the keys that this machine computes for their commits: another Python or Numba computes others.

    Rows of commits from which no key can be computed keep theirs, and are named on standard error.
    """
    renewed = with_keys({**record, "rows": [{**row, "key": row["key"] and None} for row in record["rows"]]})["rows"]
    kept = [old for old, new in zip(record["rows"], renewed, strict=True) if old["key"] and not new["key"]]
    for name in sorted({row["commit"] for row in kept}):
        count = sum(row["commit"] == name for row in kept)
        print(f"{count} rows of commit {name} keep their keys: git does not have it, or it lacks their kernels", file=sys.stderr)
    rows = [{**new, "key": old["key"] if new["key"] is None else new["key"]} for old, new in zip(record["rows"], renewed, strict=True)]
    return {**record, "rows": rows}


def keys_at(name: str, rows: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """{identity of a row: the key of its kernels at a commit}; empty for a commit that git does not have."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", name.rstrip("+"), "minllm"], cwd=ROOT, capture_output=True)
        if archive.returncode != 0:
            return {}
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        command = [sys.executable, "-P", str(ROOT / "minllm" / "bench" / "kernel_keys.py")]
        wanted = json.dumps([[benchmark, variant, case] for benchmark, case, variant in rows])
        done = subprocess.run(command, input=wanted, env={"PYTHONPATH": folder}, capture_output=True, text=True)
    keys = json.loads(done.stdout) if done.returncode == 0 else [None] * len(rows)
    return {row: key for row, key in zip(rows, keys) if key is not None}


def write_tables(shown: dict) -> None:
    """Write the record's tables into the page of results and the page that compares frameworks."""
    replace_between_markers(ROOT / "docs" / "results.md", full_table(shown))
    replace_between_markers(ROOT / "docs" / "frameworks.md", frameworks_table(shown))
    # `minllm plan` and the site's calculators read their own files.
    subprocess.run([sys.executable, ROOT / "tools" / "write_hardware_json.py"], check=True, cwd=ROOT)


def renew_keys(results: Path) -> None:
    """Compute the keys of all records in a folder anew, so that rows whose kernels are still those of their commits are current."""
    for path in sorted(results.glob("*.json")):
        whole = json.loads(path.read_text(encoding="utf-8"))
        if whole.get("ceilings"):
            write_record(path, with_own_keys(with_runs(whole)))


def chosen_parts(only: Sequence[str], results: Path, now: str) -> Iterator[Part]:
    """The parts that are asked for, or all that were not measured at this commit."""
    every = parts()
    return (part for part in every if part.name.startswith(tuple(only))) if only else iter(not_measured(every, results, now))


def main() -> int:
    """Record the files named on the command line, or measure; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="records that were measured before")
    parser.add_argument("--only", action="append", help="parts whose names begin so; may be repeated")
    parser.add_argument("--commit", default="", help="of the source that is measured, where git cannot tell")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write into; default: docs/results")
    parser.add_argument("--tables", action="store_true", help="measure nothing, only write the tables")
    parser.add_argument("--keys", action="store_true", help="measure nothing, compute all keys anew, and write the tables")
    options = parser.parse_args()
    failed: list[str] = []
    if options.keys:
        renew_keys(options.results)
    for path in options.files:
        one = with_runs(json.loads(path.read_text(encoding="utf-8")))
        print(record(with_own_keys(of_commit(one, options.commit) if options.commit else one), options.results), flush=True)
    if not (options.keys or options.tables or options.files):
        chosen = list(chosen_parts(options.only or (), options.results, options.commit or commit()))
        failed, left = measure(chosen, lambda rows, part: record(rows, options.results, part), options.commit)
        print(f"{len(left)} parts are left, run it again: {', '.join(left)}" if left else "all parts were run")
    if options.results == RESULTS and SHOWN.exists():
        write_tables(json.loads(SHOWN.read_text(encoding="utf-8")))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
