"""The tables of docs/speculation.md are those of the records and of costs/speculation.py."""

import json
import re
from pathlib import Path

import pytest

from minllm.bench.speculation_counts import sources
from minllm.costs.speculation import best_num_drafts, speed_up
from minllm.engine.build.speculation import step_times
from minllm.machine.hardware import find_gpu
from minllm.models.shapes import named_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/speculation.md").read_text(encoding="utf-8")
NAMES = {"ngram": "ngram", "1B shape": "llama-3.2-1b"}  # on the page -> in the record
NUMBER = r" ([\d.]+) "
ROW = rf"^\| (ngram|1B shape) \|{NUMBER}\|{NUMBER}\|{NUMBER}\|{NUMBER}\|{NUMBER}ms \|{NUMBER}ms \|$"
GAINS = re.findall(ROW, PAGE, re.MULTILINE)


def rows_of(record):
    """The rows of a record by its file's name."""
    return json.loads((ROOT / f"docs/results/{record}.json").read_text(encoding="utf-8"))["rows"]


def test_the_table_of_tokens_per_step():
    rows = rows_of("speculation_counts")
    values = {(row["variant"], row["unit"]): row["value"] for row in rows}
    section = PAGE.partition("### Tokens per step")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| (?!source)(.+?) \| ([\d.]+) \| ([\d.]+) \|$", section, re.MULTILINE)
    assert [name for name, *_ in shown] == [name for name, _ in sources()]
    for name, *figures in shown:
        assert figures == [f"{values[name, unit]:.2f}" for unit in ("tokens per step", "rows per step")]
    run = rows[0]
    assert run["case"] in section.replace("\n", " ") and run["commit"][:7] in section and run["date"] in section


def test_all_gains_are_shown():
    recorded = [row for row in rows_of("h200_earlier") if row["benchmark"] == "speculation" and row["case"].startswith("llama-3.1-8b")]
    assert len(GAINS) == len(recorded)


@pytest.mark.parametrize("source, rate, count, speed, predicted, step, plain", GAINS)
def test_a_gain_is_recorded_and_predicted(source, rate, count, speed, predicted, step, plain):
    found, case = {}, rf"llama-3\.1-8b .*, {count} sequences?, .*, {re.escape(rate)} of drafts"
    for row in rows_of("h200_earlier"):
        if row["variant"] == NAMES[source] and re.match(case, row["case"]):
            found[row["benchmark"]] = row
            assert row["commit"][:7] in PAGE
    gain, times = found["speculation"], found["speculation step"]
    assert (speed, step, plain) == tuple(f"{value:.2f}" for value in (gain["value"], times["value"], times["peer_value"]))
    gpu = find_gpu("NVIDIA H200")
    costs, draft = step_times(named_config("llama-3.1-8b"), gpu), None
    if source == "1B shape":
        draft = step_times(named_config("llama-3.2-1b"), gpu)
    best = best_num_drafts(costs, float(rate), int(count), 4, draft, 4)
    ours = speed_up(costs, float(rate), int(count), best, draft, 4)
    assert predicted == f"{ours:.2f}"
    if draft is None:
        within = 0.13 if (rate, count) == ("0.6", "16") else 0.1
        assert gain["value"] == pytest.approx(ours, rel=within), "as the page says"
