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
    "formats-chart": (page_charts.formats_chart, "h100_quantised", "Lines: time over rows of x, by format of weights"),
}


def figure(name: str) -> Figure:
    """A chart, drawn from its record."""
    draw, record, _ = CHARTS[name]
    return draw(json.loads((DOCS / f"results/{record}.json").read_text(encoding="utf-8")))


def framed(name: str) -> str:
    """The chart in the frame of a lesson's output."""
    return f'<div class="output" tabindex="0">{figure(name)._repr_html_()}</div>'


def image(name: str) -> str:
    """The chart's file as an image, with its caption below."""
    return f"![{CHARTS[name][2]}](assets/charts/{name.removesuffix('-chart')}.svg)\n\n*{figure(name).caption}*"


def files() -> dict[Path, str]:
    """{path: text} of all files of charts."""
    return {DOCS / f"assets/charts/{name.removesuffix('-chart')}.svg": picture_file(figure(name)) for name in CHARTS}
