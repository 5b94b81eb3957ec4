"""The charts of the reference pages show what the tables beside them say."""

import json
import re
from pathlib import Path

from minllm.bench.page_charts import layer_times, pareto_chart, roof_chart, vllm_chart
from minllm.bench.results_table import BEGIN

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD = json.loads((DOCS / "results/h200.json").read_text(encoding="utf-8"))


def test_the_bars_of_vllm_are_the_ratios_of_the_table():
    spoken = vllm_chart(RECORD).alternative
    rows = [
        line.split(" | ") for line in (DOCS / "frameworks.md").read_text(encoding="utf-8").splitlines() if line.startswith(("| 8B", "| 1B"))
    ]
    assert len(rows) == spoken.count(" x;") >= 13
    for name, *_, ratio, _ in rows:
        assert f"{name[2:].replace(' shape', '')} {float(ratio):.3g} x" in spoken


def test_the_bars_of_kernels_are_the_shares_of_the_short_table():
    spoken = roof_chart(RECORD).alternative
    short = (DOCS / "results.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition("## All rows")[0]
    shares = {name: share for name, share in re.findall(r"^\| (.*?) \(`.*?\| .*? \| (\d+) % \|", short, re.MULTILINE)}
    assert len(shares) == spoken.count(" %") - 1 and all(f"{name} {share} %" in spoken for name, share in shares.items())


def test_the_lines_of_formats_are_the_sums_of_the_page():
    """The chart takes the fastest kernel, the page's table the chosen one: they differ by at most 1.3 %."""
    page = (DOCS / "quantised-weights.md").read_text(encoding="utf-8").partition("The sum of the four GEMMs, with")[2]
    head, _, *rows = [line.strip("|").split("|") for line in page.splitlines() if line[:1] == "|"][:12]
    names = {"NF4": "nf4"} | {name: name for name in ("bfloat16", "int8", "int4_g128", "Q8_0")}
    times = layer_times(json.loads((DOCS / "results/h100_quantised.json").read_text(encoding="utf-8")))
    for column, name in enumerate(cell.strip() for cell in head):
        if name in names:
            shown = [(int(row[0].replace(",", "")), float(row[column].replace(",", ""))) for row in rows]
            drawn = times.pop(names[name])
            assert [count for count, _ in drawn] == [count for count, _ in shown]
            assert all(fastest <= 1.001 * chosen and chosen <= 1.013 * fastest for (_, fastest), (_, chosen) in zip(drawn, shown))
    assert not times


def test_the_pareto_plot_has_both_rates_of_every_run():
    """A user's rate is the GPU's over the number of clients; a run that another one beats in both is left out."""
    rates = {
        "": {1: 250.0, 64: 8000.0, 256: 12800.0},
        ", weights in fp8, KV cache in fp8_e4m3": {1: 440.0, 8: 3200.0, 64: 3100.0, 256: 25600.0},
    }
    case, run = (
        "llama-3.1-8b (random weights), 512 requests",
        dict(benchmark="serving throughput", machine="NVIDIA H200", date="2026-01-02"),
    )
    rows = [
        dict(run, case=f"{case}{form}, all at once", variant=f"max_concurrency {clients}", value=value)
        for form, found in rates.items()
        for clients, value in found.items()
    ]
    drawn = pareto_chart(dict(rows=[*rows, dict(run, case=f"{case}, all at once", variant="split_fuse", value=9e9)]))
    spoken = drawn.alternative
    assert "bfloat16: 12,800 at 50 to 250 at 250" in spoken and "fp8: 25,600 at 100 to 440 at 440" in spoken
    assert drawn.svg.count("<circle") == 3 + 3 and "from 1 to 256" in drawn.caption
    assert pareto_chart(dict(rows=[])) is None
