"""The README's rows: one run, in the table and in the chart."""

import json
from pathlib import Path

import pytest

from minllm.bench.frameworks_table import VLLM_DATE, VLLM_DEVICE
from minllm.bench.headline import HEADLINE, headline_rows, headline_table, rows_of
from minllm.bench.record import Record, Row
from minllm.bench.results_table import BEGIN, END
from minllm.bench.speed_chart import speed_chart

ROOT = Path(__file__).parents[2]
RUN = json.loads((ROOT / "docs/assets/speed.json").read_text(encoding="utf-8"))


def row(wanted, value, **fields):
    """A measured row, as a benchmark makes it."""
    run = dict(machine="a card", date="2026-01-02", commit="0123456789ab", key="")
    return Row(wanted.benchmark, wanted.case, wanted.variant or "default", value, "unit", **run, **fields)


def a_run(device, *rows):
    """The record of a run on a device."""
    return Record(device, "580", "2026-01-02", "0123456789ab", {"torch": "2.11.0"}, {}, list(rows)).as_dict()


def test_the_readme_shows_the_run():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == headline_table(RUN), "the README does not follow docs/assets/speed.json: python tools/record.py --tables writes it"
    assert len(headline_rows(RUN)) == 8 and len(rows_of(RUN)) == 7
    assert not any(one["commit"][:7] in shown for one in RUN["rows"])
    assert all(one["of_limit"] is None or round(one["of_limit"], 2) <= 1.04 for one in RUN["rows"])


def test_a_line_holds_measurements_side_by_side_with_vllm_on_its_own_card_only():
    large, small = next(wanted for wanted in HEADLINE.values() if len(wanted) == 2)
    rows = [row(large, 10_642.0), row(small, 44_000.0), row(small, 4.0)]
    table = headline_table(a_run(VLLM_DEVICE, *rows))
    assert "| 10,642 · 44,000 unit |  | vLLM 0.25.1: 10,642 · 40,000 | 1.00 · 1.10 |" in table
    assert f"One {VLLM_DEVICE}, 2026-01-02, PyTorch 2.11.0" in table and f"vLLM: another {VLLM_DEVICE}, {VLLM_DATE}" in table
    elsewhere = headline_table(a_run("NVIDIA H100", *rows))
    assert "| 10,642 · 44,000 unit |  |  |  |" in elsewhere and "vLLM" not in elsewhere


def test_a_record_that_lacks_a_row_is_named():
    every = [one for line in HEADLINE.values() for one in line]
    whole = a_run("a card", *(row(one, 1.0) for one in every), Row("launch", "1 array", "driver", 1.0, "µs"))
    assert [one["benchmark"] for one in headline_rows(whole)] == [one.benchmark for one in every]
    with pytest.raises(LookupError, match=every[0].bar):
        headline_rows(whole | dict(rows=whole["rows"][1:]))


def test_the_chart_has_a_bar_for_every_measurement_beside_a_peer():
    shown = [wanted.bar for rows in rows_of(RUN).values() for wanted, one in rows if one["ratio"]]
    alternative = speed_chart(RUN).alternative
    assert shown and all(name in alternative for name in shown)
