"""Measure everything that is recorded, and write it into docs/results, one file per device.

    python tools/record_results.py                          kernels and steps (beside PyTorch's, if it is installed), generation, perplexity
    python tools/record_results.py --only kernels           one part of it
    python tools/record_results.py /tmp/1b.json             record what `minllm bench ... --json /tmp/1b.json` measured earlier

New measurements replace old rows; all others stay. A part that fails is reported, the others are recorded, and the exit
code is 1. The tables in README.md, docs/results.md and docs/frameworks.md follow the record of the H200. Run it from a clean checkout:
the commit is part of the record. Without git, name the commit with --commit.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from minllm.bench.frameworks_table import frameworks_table
from minllm.bench.record import Record, Row, file_name, merged
from minllm.bench.results_table import full_table, replace_between_markers, short_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SHOWN = RESULTS / "h200.json"  # the record whose tables are shown in README.md and docs/results.md
LENGTHS = ("--prompt-tokens", "512", "--tokens", "128")
SECONDS = 500  # time limit of a part
BENCHMARKS = (
    ("perplexity", "--model", "bundled"),
    ("perplexity", "--model", "draft"),
    ("accuracy",),
    ("generate", "--model", "bundled", *LENGTHS),
    ("generate", "--model", "llama-3.2-1b", *LENGTHS),
    ("kernels",),
    ("step",),
    ("generate", "--model", "llama-3.1-8b", *LENGTHS),
)


def arguments_of(benchmark: tuple[str, ...]) -> tuple[str, ...]:
    """A benchmark's command line: kernels and prefill are measured beside PyTorch if it is installed."""
    if benchmark[0] in ("kernels", "step") and importlib.util.find_spec("torch"):
        return (*benchmark, "--against", "torch")
    return benchmark


def measure(benchmarks: list[tuple[str, ...]]) -> Iterator[dict | None]:
    """Run each in its own process, and yield its record as soon as there is one; None, also or instead, if it failed."""
    for benchmark in benchmarks:
        start, name = time.monotonic(), " ".join(("minllm", "bench", *arguments_of(benchmark)))
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            command = [sys.executable, "-m", "minllm", "bench", *arguments_of(benchmark), "--json", str(path)]
            try:
                code = subprocess.run(command, timeout=SECONDS).returncode
            except subprocess.TimeoutExpired:
                code = f"none within {SECONDS} s"
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        print(f"== {time.monotonic() - start:.1f} s", flush=True)
        if text:
            yield json.loads(text)
        if code != 0:
            print(f"FAILED (exit code {code}): {name}", file=sys.stderr, flush=True)
            yield None


def record(measured: dict, results: Path = RESULTS) -> Path:
    """Merge one measured record into its device's file, one row per line, and return the file."""
    new = Record(**{**measured, "rows": [Row(**row) for row in measured["rows"]]})
    path = results / file_name(new.device)
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    whole = merged(old, new)
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in whole.pop("rows"))
    head = json.dumps(whole, ensure_ascii=False, indent=1).removesuffix("\n}")
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    return path


def write_tables(shown: dict) -> None:
    """Write the record's tables into the README, the page of results and the page that compares frameworks."""
    replace_between_markers(ROOT / "README.md", short_table(shown))
    replace_between_markers(ROOT / "docs" / "results.md", full_table(shown))
    replace_between_markers(ROOT / "docs" / "frameworks.md", frameworks_table(shown))


def write_what_follows() -> None:
    """Write the measurements where `minllm plan` and the site's calculators read them."""
    subprocess.run([sys.executable, ROOT / "tools" / "write_hardware_json.py"], check=True, cwd=ROOT)


def main() -> int:
    """Record the files named on the command line, or measure first; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="records that were measured before")
    parser.add_argument("--only", action="append", choices=sorted({benchmark[0] for benchmark in BENCHMARKS}), help="may be repeated")
    parser.add_argument("--commit", help="of the source that is measured, where git cannot tell")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write into; default: docs/results")
    options = parser.parse_args()
    chosen = [benchmark for benchmark in BENCHMARKS if not options.only or benchmark[0] in options.only]
    records = (json.loads(path.read_text(encoding="utf-8")) for path in options.files) if options.files else measure(chosen)
    failed = False
    for one in records:
        if one is None:
            failed = True
            continue
        if options.commit:
            one["commit"] = options.commit
        print(record(one, options.results), flush=True)
    if options.results == RESULTS and SHOWN.exists():
        write_tables(json.loads(SHOWN.read_text(encoding="utf-8")))
        write_what_follows()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
