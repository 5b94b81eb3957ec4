"""Flowcharts of the pages as SVG: the subset of Mermaid is parsed, nothing overlaps or leaves the picture, other syntax is refused."""

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("flowchart", ROOT / "tools/site/flowchart.py")
flowchart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(flowchart)

PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "lessons").glob("[0-9]*.py"))]
FENCE = re.compile(r"^(?:# )?```mermaid\n(.*?)^(?:# )?```", re.MULTILINE | re.DOTALL)
DIAGRAMS = [
    pytest.param(re.sub("^# ?", "", found, flags=re.MULTILINE) if page.suffix == ".py" else found, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, found in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
]


def boxes(svg):
    """(left, top, right, bottom) of each node, and of the picture."""
    picture = BeautifulSoup(svg, "html.parser").svg
    found = [
        (float(box["x"]), float(box["y"]), float(box["x"]) + float(box["width"]), float(box["y"]) + float(box["height"]))
        for box in picture.select('rect:not([fill="none"])')
    ]
    left, top, width, height = map(float, picture["viewbox"].split())
    return found, (left, top, left + width, top + height)


def assert_apart(svg):
    nodes, picture = boxes(svg)
    for number, (left, top, right, bottom) in enumerate(nodes):
        assert picture[0] <= left and picture[1] <= top and right <= picture[2] + 1 and bottom <= picture[3] + 1
        for one in nodes[:number]:
            assert right <= one[0] + 0.2 or one[2] <= left + 0.2 or bottom <= one[1] + 0.2 or one[3] <= top + 0.2


def test_a_line_of_every_kind_is_parsed():
    chart = flowchart.parse(
        textwrap.dedent("""
        flowchart LR
            subgraph g["a group"]
                a["one<br/>two"] --> b[("store")]
            end
            a & b -- "label" --> c -->|"after"| d
            c <-. "both" .-> d
        """)
    )
    assert not chart.down and list(chart.nodes) == ["a", "b", "c", "d"] and chart.groups == [("a group", ["a", "b"])]
    assert chart.nodes["a"].lines == ["one", "two"] and chart.nodes["b"].store and chart.nodes["c"].lines == ["c"]
    links = [(link.source, link.target, link.lines, link.dashed, link.both) for link in chart.links]
    assert links == [
        ("a", "b", [], False, False), ("a", "c", ["label"], False, False), ("b", "c", ["label"], False, False),
        ("c", "d", ["after"], False, False), ("c", "d", ["both"], True, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "source", ["sequenceDiagram\nA->>B: x", "flowchart LR\na ==> b", "flowchart LR\na{choice} --> b", "flowchart LR\n--> b"]
)
def test_what_is_not_drawn_is_refused(source):
    with pytest.raises(flowchart.FlowchartError):
        flowchart.parse(source)


@pytest.mark.parametrize("source", DIAGRAMS)
def test_a_diagram_of_a_page_is_drawn_for_both_widths(source):
    figure = BeautifulSoup(flowchart.figure(source), "html.parser")
    drawn = figure.select("svg")
    assert 1 <= len(drawn) <= 2
    assert float(drawn[0]["width"]) <= flowchart.WIDEST
    assert float(drawn[-1]["width"]) <= 1.3 * flowchart.NARROW  # text of 13 px stays at 10 px on a phone
    for svg in drawn:
        assert_apart(str(svg))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.tuples(st.integers(0, n), st.integers(0, n)), min_size=1, max_size=14)), st.booleans()
)
def test_nodes_of_any_graph_keep_apart(links, down):
    source = "flowchart LR\n" + "\n".join(f'n{a}["node {a}<br/>{"x" * a}"] --> n{b}' for a, b in links if a != b)
    if "-->" in source:
        width, height, svg = flowchart.drawing(source, down)
        assert width > 0 and height > 0
        assert_apart(svg)
        names = {f"n{number}" for link in links if link[0] != link[1] for number in link}
        assert len(boxes(svg)[0]) == len(names)
