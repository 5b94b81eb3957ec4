"""The tables in the README and on the results page are what the record says, and every kernel has its row."""

import json
from pathlib import Path

import pytest

from minllm.bench.results_table import BEGIN, END, full_table, number, replace_between_markers, short_table

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "docs/results/h200.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page, table", [("README.md", short_table), ("docs/results.md", full_table)])
def test_pages_show_the_record(page, table):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(RECORD), f"{page} does not follow docs/results/h200.json: tools/record_results.py writes both"


def test_every_row_is_on_the_page():
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for row in RECORD["rows"]:
        when = f" (measured {row['earlier']})" if row.get("earlier") else ""
        assert f"| {row['case']}, {row['variant']}{when} |" in page
    assert RECORD["device"] == "NVIDIA H200" and RECORD["date"] and RECORD["commit"] and RECORD["packages"]["numba-cuda"]


def test_numbers_have_three_or_four_figures():
    assert [number(value) for value in (None, 6317.8, 225.9, 3.994, 0.838, 0.0211)] == ["", "6,318", "226", "3.99", "0.838", "0.0211"]


def test_only_the_part_between_the_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_between_markers(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
