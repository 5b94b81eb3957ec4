"""The charts of docs/frameworks.md, docs/results.md and docs/quantised-weights.md: inline on the site, as SVG files in the repository.

python tools/write_pages.py     writes the files too
"""

import json
from pathlib import Path

from minllm.bench import page_charts
from minllm.figures.figure import Figure
from minllm.figures.picture_file import picture_file

DOCS = Path(__file__).parents[2] / "docs"
CHARTS = {
    "vllm-chart": (page_charts.vllm_chart, "h200", "Bars: speed of minllm over the faster vLLM, case by case"),
    "roof-chart": (page_charts.roof_chart, "h200", "Bars: the share of the hardware's limit that each kernel reaches"),
    "pareto-chart": (page_charts.pareto_chart, "h200", "Lines: tokens per second of a GPU over tokens per second of a user"),
    "formats-chart": (page_charts.formats_chart, "h100_quantised", "Lines: time over rows of x, by format of weights"),
}


def figure(name: str) -> Figure | None:
    """A chart, drawn from its record; None if that lacks its rows."""
    draw, record, _ = CHARTS[name]
    return draw(json.loads((DOCS / f"results/{record}.json").read_text(encoding="utf-8")))


def framed(name: str) -> str:
    """The chart in the frame of a lesson's output."""
    drawn = figure(name)
    return f'<div class="output" tabindex="0">{drawn._repr_html_()}</div>' if drawn else ""


def image(name: str) -> str:
    """The chart's file as an image, with its caption below."""
    drawn = figure(name)
    return f"![{CHARTS[name][2]}](assets/charts/{name.removesuffix('-chart')}.svg)\n\n*{drawn.caption}*" if drawn else ""


def files() -> dict[Path, str]:
    """{path: text} of all files of charts."""
    drawn = {name: figure(name) for name in CHARTS}
    return {DOCS / f"assets/charts/{name.removesuffix('-chart')}.svg": picture_file(one) for name, one in drawn.items() if one}
