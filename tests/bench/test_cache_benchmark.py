"""`minllm bench cache`: its tables and its record, and that what is recorded is what the code counts."""

import json
from pathlib import Path

import pytest

from minllm.bench import cache as benchmark
from minllm.bench.replay import replay

DOCS = Path(__file__).parents[2] / "docs"
RECORD = DOCS / "results/cache_traffic.json"


def test_the_tables_and_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "CACHE_TOKENS", 8192)
    file = tmp_path / "record.json"
    benchmark.run(file, 12)
    printed = capsys.readouterr().out
    names = [*benchmark.chat_policies(), *benchmark.sharing_policies()]
    assert [line[:24].strip() for line in printed.splitlines() if line[24:].strip()[:1].isdigit()][-len(names) :] == names
    record = json.loads(file.read_text())
    assert record["device"].startswith("cpu") and len(record["rows"]) == 4 * len(names)
    assert {row["case"] for row in record["rows"]} == {
        "12 chat requests, cache of 8192 tokens", "12 chat requests, 8 system prompts of 512, cache of 8192 tokens",
    }  # fmt: skip


def test_the_record_can_be_counted_again():
    """One policy of the recorded run, which takes a second; on any machine it is the same to the last digit."""
    rows = {(row["benchmark"], row["case"], row["variant"]): row["value"] for row in json.loads(RECORD.read_text())["rows"]}
    name = "paged, blocks of 64"
    played = replay(benchmark.chat_policies()[name](), benchmark.CHAT.generate())
    for row in benchmark.rows(benchmark.CHAT, name, played):
        assert rows[row.benchmark, row.case, row.variant] == row.value


def test_paged_waste_at_block_16_is_recorded_below_4_percent():
    rows = {(row["benchmark"], row["case"], row["variant"]): row["value"] for row in json.loads(RECORD.read_text())["rows"]}
    case = benchmark.case_name(benchmark.CHAT)
    assert rows["cache waste", case, "paged, blocks of 16"] < 4
    assert rows["cache with tokens", case, "contiguous"] == pytest.approx(20.4, abs=1), "the paper's figure 2 has 20.4 % for its baseline"


def test_the_page_follows_the_record():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    shown = page.split("<!-- cache policies: begin -->")[1].split("<!-- cache policies: end -->")[0].strip()
    assert shown == benchmark.table(json.loads(RECORD.read_text())), "`minllm bench cache --json` and cache.table write both"
