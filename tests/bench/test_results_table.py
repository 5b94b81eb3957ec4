"""The tables on the results page and on the page of frameworks are what the record says, and every kernel has its row."""

import json
from pathlib import Path

import pytest

from minllm.bench.frameworks_table import COMPARED, frameworks_table
from minllm.bench.record import origin
from minllm.bench.results_table import BEGIN, END, full_table, number, replace_between_markers, table

ROOT = Path(__file__).resolve().parents[2]
RECORD = json.loads((ROOT / "docs/results/h200.json").read_text(encoding="utf-8"))


PAGES = [("docs/results.md", full_table), ("docs/frameworks.md", frameworks_table)]


@pytest.mark.parametrize("page, made", PAGES)
def test_pages_show_the_record(page, made):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == made(RECORD), f"{page} does not follow docs/results/h200.json: tools/record.py writes both"


def test_every_row_is_on_the_page():
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for row in RECORD["rows"]:
        assert f"| {row['case']}, {row['variant']}{origin(row, RECORD)} |" in page
        assert row["machine"] == RECORD["device"] and row["date"] and row["commit"] and "key" in row
    assert RECORD["device"] == "NVIDIA H200" and RECORD["date"] and RECORD["commit"] and RECORD["packages"]["numba-cuda"]


def test_frameworks_are_compared_where_a_row_is_recorded():
    assert frameworks_table(RECORD | dict(rows=[])).count("\n| ") == 1  # below the head only the rule
    run = dict(machine=RECORD["device"], date=RECORD["date"], commit=RECORD["commit"], key="")
    rows = [
        dict(benchmark="decode step", case="llama-3.1-8b (random weights), batch 16, context 1024", variant="graph replay", value=5000.0),
        dict(benchmark="decode step", case="llama-3.1-8b (random weights), batch 16, context 192", variant="graph replay", value=4096.0),
        dict(benchmark="decode step", case="llama-3.1-8b (random weights), batch 16, context 64", variant="kernels in order", value=9.0),
    ]
    compared = frameworks_table(RECORD | dict(rows=[row | run | dict(unit="µs") for row in rows]))
    assert "| 8B shape, decode step, batch 16 | 5.12 ms | 5.12 ms | 4.10 ms | 1.25 | batch 16, context 192, graph replay |" in compared
    name = "llama-3.1-8b (random weights), mixed-prompts, 256 requests, all at once"
    rows = [dict(benchmark="serving throughput", case=name, variant=v, value=r, unit="tokens/s") for v, r in (("a", 9e3), ("b", 10_642.0))]
    compared = frameworks_table(RECORD | dict(rows=[row | run for row in rows]))
    assert "| 10,600 tokens/s | 10,642 tokens/s | 10,642 tokens/s | 1.00 |" in compared
    assert len({compared.name for compared in COMPARED}) == len(COMPARED)


def test_numbers_have_three_or_four_figures():
    assert [number(value) for value in (None, 6317.8, 225.9, 3.994, 0.838, 0.0211)] == ["", "6,318", "226", "3.99", "0.838", "0.0211"]


def test_only_the_part_between_the_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_between_markers(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def test_a_table_has_the_columns_that_its_rows_fill():
    row = dict(value=4.35, unit="TB/s", peer=None, peer_value=None, ratio=None, of_limit=0.98)
    record = dict(ceilings=dict(copy_tb_s=4.25, bf16_tflops=800.0))
    assert table({"a": row}, record).splitlines()[0] == "|  | measured | of the limit |" and "| 4.35 TB/s | 102 % |" in table(
        {"a": row}, record
    )
    served = dict(row, unit="tokens/s", of_limit=None, low=4.2, high=4.4, metrics={"p99_itl_ms": 5.25})
    shown = table({"a": dict(row, peer="torch cuBLAS", peer_value=4.0, ratio=1.0875), "b": served}, record)
    assert "| b | 4.35 (4.2 to 4.4) tokens/s |  |  |  | 5.25 |" in shown and "p99_itl_ms" in shown.splitlines()[0]
    assert "p99_itl_ms" not in table({"b": served}, record, further=False)
