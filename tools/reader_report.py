"""Add a reader's report, the file of `minllm bench report`, to the table of docs/gpus.md; a newer one of the same GPU replaces the older.

python tools/reader_report.py report.json
"""

import json
import math
import re
import sys
from pathlib import Path

from minllm.bench.report import BATCHES, CONTEXT, PROMPT, REQUESTS, SERVED, STEPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpus.md"
BEGIN, END = "<!-- readers: begin -->", "<!-- readers: end -->"
NAME = re.compile(r"[\w .,()+/-]{1,80}")  # what a cell of a table may hold
SCALE = {"µs": 1e-3, "ms": 1.0, "tokens/s": 1.0}
SMALL, LARGE = "llama-3.2-1b", "llama-3.1-8b"


def line(text: str) -> str:
    """The line of a report. Raises SystemExit for a file that is none."""
    try:
        report = json.loads(text)
        source = report["commit"][:8] or f"minllm {report['packages'].get('minllm', 'without git')}"
        device, *run = map(named, (report["device"], report["driver"], report["date"], source))
        copy = positive(report["ceilings"]["copy_tb_s"])
        values = {(row["benchmark"], row["case"]): positive(row["value"]) * SCALE[row["unit"]] for row in report["rows"]}
    except (ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"This is no file of `minllm bench report` ({type(error).__name__}: {error}).") from None
    steps = [joined(values, *(step(model, form, batch) for batch in BATCHES)) for model, form in STEPS]
    prompts = joined(values, *(("whole prefill", f"{model} (random weights), {PROMPT} tokens") for model in (SMALL, LARGE)))
    served = joined(values, ("serving throughput", f"{SERVED} (random weights), {REQUESTS}, 256 requests, all at once"))
    return f"| {' | '.join([device, ', '.join(run), f'{copy:.2f}', *steps, prompts, served])} |"


def named(value: object) -> str:
    """A name that is safe in a table. Raises ValueError for another."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name of up to 80 letters, digits and signs")
    return value


def positive(value: object) -> float:
    """A measured number. Raises ValueError for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no positive number")
    return float(value)


def step(model: str, form: str, batch: int) -> tuple[str, str]:
    """Benchmark and case of a decode step."""
    return "decode step", f"{model} (random weights{' in ' * bool(form)}{form}), batch {batch}, context {CONTEXT}"


def joined(values: dict[tuple[str, str], float], *wanted: tuple[str, str]) -> str:
    """The values side by side; "–" for one that the report lacks."""
    shown = (f"{values[one]:,.0f}" if values.get(one, 0) >= 100 else f"{values[one]:.3g}" if one in values else "–" for one in wanted)
    return " · ".join(shown)


def added(page: str, new: str) -> str:
    """The page with the line in its table, sorted by GPU, in the place of an older one of the same GPU."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    head, rule, *lines = table.strip().splitlines()
    gpu = new.split(" | ")[0]
    lines = sorted([*(one for one in lines if one.split(" | ")[0] != gpu), new])
    return "\n".join([f"{before}{BEGIN}", head, rule, *lines, f"{END}{after}"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    PAGE.write_text(added(PAGE.read_text(encoding="utf-8"), line(Path(sys.argv[1]).read_text(encoding="utf-8"))), encoding="utf-8")
