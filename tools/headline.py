"""Measure the README's rows (minllm/bench/headline.py) in one run on one card, at most 9 minutes. Needs a GPU and PyTorch.

    python tools/headline.py                    measure, then write docs/assets/speed.json, the README's table and the charts
    python tools/headline.py --into FOLDER      only measure, into FOLDER/speed.json
    python tools/headline.py FOLDER/speed.json  take over such a run, with the keys that this machine computes for its kernels
    python tools/headline.py --tables           only write the table and the charts anew; sharing.png needs Chromium

The first part compiles an engine's kernels, a process per core. Each part is a process, and its rows are kept as soon as it ends. A run
that lacks a row leaves the README as it is, names the rows, and exits with 1. Run it from a clean checkout, or name the commit with
--commit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from record import BENCH, ROOT, Part, measure, merge_into, with_own_keys

from minllm.bench.headline import HEADLINE, headline_table, missing
from minllm.bench.record import write_record
from minllm.bench.results_table import replace_between_markers
from minllm.bench.row_command import KERNEL_STAGES
from minllm.bench.speed_chart import speed_chart
from minllm.figures.picture_file import picture_file
from minllm.runtime.device import is_available

SPEED = ROOT / "docs" / "assets" / "speed.json"


def kernel_names() -> list[str]:
    """The names of the rows that `minllm bench kernels` measures."""
    wanted = [one for line in HEADLINE.values() for one in line]
    return [f"{one.benchmark}, {one.case}, {one.variant}" for one in wanted if one.benchmark in KERNEL_STAGES]


def parts() -> tuple[Part, ...]:
    """The parts of a run, in order."""
    serve = (*BENCH, "serve", "--request-list", "mixed-prompts", "--model")
    cases = [word for name in kernel_names() for word in ("--case", name)]
    return (
        *(Part(f"serve {model}", (*serve, model), 60) for model in ("llama-3.1-8b", "llama-3.2-1b")),
        Part("step llama-3.1-8b", (*BENCH, "step", "--model", "llama-3.1-8b", "--against", "torch"), 120),
        Part("kernels", (*BENCH, "kernels", *cases, "--against", "torch"), 120),
    )


def measured(folder: Path, named: str) -> Path:
    """Measure into folder/speed.json, and return it. Raises SystemExit without a GPU, or if rows are missing."""
    if not is_available():
        raise SystemExit("This machine has no GPU that minllm can use: `minllm doctor` says why.")
    path = folder / SPEED.name
    path.unlink(missing_ok=True)
    measure(parts(), lambda rows, part: merge_into(path, rows), named)
    return complete(path)


def complete(path: Path) -> Path:
    """The file of a run that has all rows of the README; raises SystemExit for another."""
    lacking = missing(read(path)) if path.exists() else ["every row"]
    if lacking:
        raise SystemExit(f"{path} lacks {', '.join(lacking)}: the README keeps its rows.")
    return path


def take(path: Path, speed: Path = SPEED) -> None:
    """Make a run's rows those of the README. The record in docs/results stays: its ceilings are those of its own run."""
    write_record(speed, with_own_keys(read(complete(path))))


def write_tables(run: dict) -> None:
    """Write the README's table, its chart, and the picture that links to the site show, which holds the chart."""
    replace_between_markers(ROOT / "README.md", headline_table(run))
    SPEED.with_suffix(".svg").write_text(picture_file(speed_chart(run)), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "tools" / "site" / "sharing_picture.py"])  # says itself if it finds no Chromium


def read(path: Path) -> dict:
    """A record."""
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Measure, take over a run, or only write what follows from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a run that was measured before")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="measure into this folder, and change nothing here")
    parser.add_argument("--commit", default="", help="of the source that is measured, where git cannot tell")
    parser.add_argument("--tables", action="store_true", help="measure nothing, only write the table and the charts")
    options = parser.parse_args()
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
        print(f"{measured(options.into, options.commit)} has every row")
        return
    if not options.tables:
        take(options.file or measured(Path(tempfile.mkdtemp()), options.commit))
    write_tables(read(SPEED))


if __name__ == "__main__":
    main()
