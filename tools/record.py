"""Measure the record of a GPU, docs/results/DEVICE.json: at most 260 rows of one commit. Needs a GPU and PyTorch.

    python tools/record.py --compile             compile the kernels, a process per core, before the clock of a run starts
    python tools/record.py --into FOLDER         measure into FOLDER, for at most nine minutes; run it again for the rest
    python tools/record.py FILE [FILE ...]       make a whole record that of the pages: docs/results, their tables, the README's rows

On an H200 with 16 cores --compile takes a minute. The first run then is 513 s: kernels 190 s, generation 48, perplexity and accuracy 55,
figures of the lessons 45, launches, swapping and the virtual cache 45, speculation 45, start-up 30, clients 55. The second is 526 s: whole
steps 240 s, served lists 206, clients of int4_g128 30, policies 50. Whole steps, serving and compiling were tried there; the seconds of
kernels are an estimate.

    python tools/record.py --plan                print the parts, their rows and seconds, and measure nothing
    python tools/record.py --tables              write the tables anew from the record
    python tools/record.py --changed             print the rows whose kernels have changed since they were measured
    python tools/record.py --keys                compute all keys anew from the rows' commits, after a change of kernel_keys.py; rows of
                                                 commits that git does not have keep theirs

A part is a benchmark in a process of its own, or in three, one after the other, whose median row is kept with the range. PyTorch's kernels
are measured in the same process. The record notes each part that came to its end, so a run goes on where the one before it stopped. A part
that fails is reported, the others are recorded, and the exit code is 1. A commit other than that of the record in FOLDER begins it anew.
Run it from a clean checkout, or name the commit with --commit. With two equal GPUs, CUDA_VISIBLE_DEVICES and --only let each measure a part
of the record into a folder of its own, at the same time; the files of both are one record.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from minllm.bench.frameworks_table import frameworks_table
from minllm.bench.headline import headline_rows, headline_table
from minllm.bench.kernel_keys import is_older
from minllm.bench.kernels import chosen_cases
from minllm.bench.record import commit, file_name, identity, median_rows, merged, of_commit, write_record
from minllm.bench.results_table import full_table, replace_between_markers
from minllm.bench.speed_chart import speed_chart
from minllm.figures.picture_file import picture_file
from minllm.runtime.device import is_available

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SHOWN = RESULTS / "h200.json"  # the record whose tables are shown on the pages
SPEED = ROOT / "docs" / "assets" / "speed.json"  # the README's rows
RUN_SECONDS, MOST_ROWS, PROCESSES = 540, 260, 3
BENCH = (sys.executable, "-m", "minllm", "bench")
LESSONS = (sys.executable, str(ROOT / "tools" / "measure_lessons.py"))
LARGE, SMALL, EXPERTS = "llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b"
LENGTHS = ("--input-len", "128", "--output-len", "128")
FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3")


@dataclass(frozen=True)
class Part:
    """A benchmark. command: writes its record to the path behind `--json`. seconds: of all processes. rows: how many it makes."""

    name: str
    command: tuple[str, ...]
    seconds: int
    rows: int
    processes: int = 1


def bench(name: str, seconds: int, rows: int, *command: str, processes: int = 1) -> Part:
    """A part that is a subcommand of `minllm bench`, the first word of the name unless options differ."""
    return Part(name, (*BENCH, *command), seconds, rows, processes)


def lesson(name: str, seconds: int, rows: int) -> Part:
    """The figures that lessons alone show."""
    return Part(f"lessons {name}", (*LESSONS, "--only", name), seconds, rows)


def step(model: str, seconds: int, rows: int, *options: str, batches: Sequence[int] = (1, 16, 64, 256), processes: int = PROCESSES) -> Part:
    """Whole steps of a model, with other options than its 16-bit weights if there are any."""
    sizes = [word for batch in batches for word in ("--batch", str(batch))]
    name = " ".join(["step", model, *(options[1:2] if "--quantization" in options else ())])
    return bench(name, seconds, rows, "step", "--model", model, *sizes, *options, processes=processes)


def serve(name: str, seconds: int, rows: int, model: str, *options: str, processes: int = PROCESSES) -> Part:
    """Requests served by an engine."""
    return bench(f"serve {name}", seconds, rows, "serve", "--model", model, *options, processes=processes)


def parts() -> tuple[Part, ...]:
    """All parts, in order."""
    torch, clients = ("--against", "torch"), ("--num-prompts", "512", *LENGTHS, "--compare-concurrency")
    contexts, prompt = ("--context", "192", "--context", "1024"), ("--prompt", "2048", *torch)
    generated = ("--prompt-tokens", "512", "--tokens", "128")
    batches = tuple(word for batch in ("1", "4", "16", "64") for word in ("--batch", batch))
    return (
        bench("kernels", 190, len(chosen_cases((), ())), "kernels", *torch),
        *(bench(f"generate {model}", seconds, 3, "generate", "--model", model, *generated)
          for model, seconds in (("bundled", 8), (SMALL, 15), (LARGE, 25))),
        *(bench(f"perplexity {model}", 10, 2, "perplexity", "--model", model) for model in ("bundled", "draft")),
        bench("accuracy", 35, 7, "accuracy"),
        lesson("copy", 5, 2), lesson("cache", 5, 2), lesson("splits", 10, 9), lesson("length", 25, 6),
        bench("launch", 10, 9, "launch"),
        bench("swap", 20, 12, "swap"),
        bench("virtual", 15, 2, "virtual"),
        bench("speculation", 45, 8, "speculation", "--model", LARGE, "--draft", "ngram", "--acceptance", "0.8", *batches),
        bench("startup", 30, 2, "startup"),
        serve("clients", 25, 4, LARGE, *clients, processes=1),
        serve("clients fp8", 30, 4, LARGE, *clients, *FP8, processes=1),
        step(SMALL, 40, 12, *contexts, *prompt),
        step(LARGE, 75, 12, *contexts, *prompt),
        step(LARGE, 40, 4, "--quantization", "int4_g128", "--prompt", "0"),
        step(LARGE, 50, 4, "--quantization", "fp8", "--prompt", "0"),
        step(EXPERTS, 35, 4, "--prompt", "0", batches=(1, 16, 64), processes=1),
        *(serve(f"{requests} {model}", seconds, 1, model, "--request-list", requests)
          for model, requests, seconds in ((LARGE, "mixed-prompts", 45), (SMALL, "mixed-prompts", 25), (LARGE, "nano-vllm", 75),
                                           (SMALL, "nano-vllm", 36))),
        serve("fp8", 25, 1, LARGE, "--request-list", "tensorrt-llm-128-128", "--num-prompts", "1024", "--max-num-seqs", "512",
              "--max-num-batched-tokens", "4096", *FP8, processes=1),
        serve("clients int4_g128", 30, 4, LARGE, *clients, "--quantization", "int4_g128", processes=1),
        serve("policies", 50, 8, SMALL, "--num-prompts", "600", "--input-len", "64,256,512", "--output-len", "128", "--compare-policies",
              "--request-rate", "192", "--request-rate", "423", "--goodput", "ttft:200 tpot:5", processes=1),
    )  # fmt: skip


def print_plan(every: Sequence[Part]) -> None:
    """Print the parts by run, with their rows and seconds."""
    number, used = 1, 0
    for part in every:
        if used + part.seconds > RUN_SECONDS:
            number, used = number + 1, 0
        used += part.seconds
        times = f" x {part.processes}" if part.processes > 1 else ""
        print(f"run {number}  {used:4} s  {part.rows:4} rows  {part.name}{times}, {part.seconds} s")
    print(f"{sum(part.rows for part in every)} rows of at most {MOST_ROWS}, {number} runs of at most {RUN_SECONDS} s")


def compile_kernels() -> None:
    """Compile the kernels of all parts on all cores, and print how many and how long."""
    from minllm.bench.record_kernels import kernels_of_record
    from minllm.runtime.compile_ahead import compile_ahead
    from minllm.runtime.device import current_device

    start, device = time.monotonic(), current_device()
    with compile_ahead(kernels_of_record, (device,), device.compute_capability) as work:
        work.wait()
        print(f"{work.done} of {len(work.keys)} kernels compiled in {time.monotonic() - start:.0f} s", flush=True)


def run(part: Part, seconds: float) -> tuple[dict | None, bool]:
    """(what a part measured, None if nothing; whether all its processes came to their ends) within `seconds`."""
    end, found, well = time.monotonic() + seconds, [], True
    for number in range(part.processes):
        print(f"== {part.name}{f', process {number + 1}' if part.processes > 1 else ''}", flush=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            try:
                code: Any = subprocess.run([*part.command, "--json", str(path)], timeout=max(1.0, end - start)).returncode
            except subprocess.TimeoutExpired:
                code = f"none within {end - start:.0f} s"
            if path.exists():
                found.append(json.loads(path.read_text(encoding="utf-8")))
        print(f"== {time.monotonic() - start:.1f} s", flush=True)
        if code != 0:
            well = False
            print(f"FAILED (exit code {code}): {part.name}", file=sys.stderr, flush=True)
    return ({**found[-1], "rows": median_rows([one["rows"] for one in found])} if found else None), well


def measure(
    chosen: Sequence[Part], keep: Callable[[dict, str], Any], named: str = "", clock: Callable[[], float] = time.monotonic
) -> tuple[list[str], list[str]]:
    """Run parts and `keep` their records as long as there is time -> (names of those that failed, names of those that were not begun).

    keep: takes a record, and the name of its part or "" if that failed. named: the commit, where git cannot tell.
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


def record(measured: dict, folder: Path, part: str = "") -> Path:
    """Merge measured rows into their device's file in a folder, and return the file. part: its name, to be noted as measured."""
    path = folder / file_name(measured["device"])
    old = read(path) if path.exists() else None
    if old is not None and old["commit"] != measured["commit"]:
        old = None
    noted = [*(old or {}).get("parts", []), *([part] if part else [])]
    write_record(path, {**merged(old, measured), "parts": noted})
    return path


def not_measured(every: Sequence[Part], folder: Path, now: str) -> list[Part]:
    """The parts that no record in the folder notes for the commit `now`."""
    records = [read(path) for path in folder.glob("*.json")]
    return [part for part in every if not any(one["commit"] == now and part.name in one.get("parts", ()) for one in records)]


def take(paths: Sequence[Path], results: Path = RESULTS, speed: Path = SPEED) -> None:
    """Make the files of a whole record that of the pages, with the keys that this machine computes. Raises SystemExit if parts lack."""
    files = [read(path) for path in paths]
    whole = reduce(merged, files)
    measured = [name for file in files for name in file.get("parts", ())]
    lacking = [part.name for part in parts() if part.name not in measured]
    mixed = {row["commit"] for row in whole["rows"]} != {whole["commit"]} or len({file["device"] for file in files}) > 1
    if lacking or mixed or len(whole["rows"]) > MOST_ROWS:
        raise SystemExit(
            f"{', '.join(map(str, paths))}: no whole record of one GPU and commit and at most {MOST_ROWS} rows: it lacks "
            f"{', '.join(lacking) or 'no part'}."
        )
    whole["parts"] = measured
    renewed = with_own_keys(whole)
    name = file_name(whole["device"])
    write_record(results / name, renewed)
    if name == SHOWN.name:
        write_record(speed, {**renewed, "rows": headline_rows(renewed)})


def with_own_keys(record: dict) -> dict:
    """A record whose rows have the keys that this machine computes for their commits: another Python or Numba computes others.

    Rows of commits from which no key can be computed keep theirs, and are named on standard error.
    """
    unknown = [row for row in record["rows"] if row["key"] != ""]
    commits = sorted({row["commit"] for row in unknown})
    found = {name: keys_at(name, [identity(row) for row in unknown if row["commit"] == name]) for name in commits}
    rows = [{**row, "key": found.get(row["commit"], {}).get(identity(row), row["key"])} for row in record["rows"]]
    for name in commits:
        count = sum(row["commit"] == name and row["key"] is not None and identity(row) not in found[name] for row in unknown)
        if count:
            print(f"{count} rows of commit {name} keep their keys: git does not have it, or it lacks their kernels", file=sys.stderr)
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


def print_changed(results: Path) -> None:
    """Print, by benchmark, how many rows were measured before their kernels last changed, for every record with ceilings."""
    for path in sorted(results.glob("*.json")):
        whole = read(path)
        rows = whole["rows"] if whole.get("ceilings") else []
        older = Counter(row["benchmark"] for row in rows if is_older(row["benchmark"], row["variant"], row["key"], row["case"]))
        if older:
            counts = "; ".join(f"{count} {name}" for name, count in older.most_common())
            print(f"{path.name}: the kernels of {older.total()} of {len(rows)} rows have changed since they were measured: {counts}")


def write_tables(shown: dict, speed: dict) -> None:
    """Write the record's tables into the pages of results and of frameworks, and the README's rows with their chart."""
    replace_between_markers(ROOT / "docs" / "results.md", full_table(shown))
    replace_between_markers(ROOT / "docs" / "frameworks.md", frameworks_table(shown))
    replace_between_markers(ROOT / "README.md", headline_table(speed))
    SPEED.with_suffix(".svg").write_text(picture_file(speed_chart(speed)), encoding="utf-8")
    # `minllm plan` and the site's calculators read their own files; the sharing picture needs Chromium and says so itself.
    subprocess.run([sys.executable, ROOT / "tools" / "write_hardware_json.py"], check=True, cwd=ROOT)
    subprocess.run([sys.executable, ROOT / "tools" / "site" / "sharing_picture.py"])


def read(path: Path) -> dict:
    """A record."""
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> int:
    """Do what the command line says; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="*", type=Path, help="a whole record that was measured before, or its parts")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="measure into this folder")
    parser.add_argument("--only", action="append", help="parts whose names begin so, also if they are measured already; may be repeated")
    parser.add_argument("--commit", default="", help="of the source that is measured, where git cannot tell")
    for name in ("compile", "plan", "tables", "changed", "keys"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.plan:
        print_plan(parts())
    if options.changed:
        print_changed(RESULTS)
    if (options.compile or options.into) and not is_available():
        raise SystemExit("This machine has no GPU that minllm can use: `minllm doctor` says why.")
    if options.compile:
        compile_kernels()
    failed: list[str] = []
    if options.into:
        now = options.commit or commit()
        if not now:
            raise SystemExit("git cannot tell the commit of this source, and rows need one: name it with --commit.")
        every = [part for part in parts() if not options.only or part.name.startswith(tuple(options.only))]
        chosen = every if options.only else not_measured(every, options.into, now)
        failed, left = measure(chosen, lambda measured, part: record(measured, options.into, part), options.commit)
        print(f"{len(left)} parts are left, run it again: {', '.join(left)}" if left else "all parts were run")
    if options.keys:
        for path in sorted(RESULTS.glob("*.json")):
            if read(path).get("ceilings"):
                write_record(path, with_own_keys(read(path)))
    if options.file:
        take(options.file)
    if options.file or options.keys or options.tables:
        write_tables(read(SHOWN), read(SPEED))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
