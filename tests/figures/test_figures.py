"""Figures: well-formed, inside their frame, named for those who cannot see them, and of the page's colours."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.course import Bar, Dot, Span, accesses, bars, copies, curves, heat_map, roofline, timeline
from minllm.errors import LessonError
from minllm.figures.figure import FONT_SIZE, text_width
from minllm.figures.picture_file import on_white
from minllm.figures.roofline import attainable
from minllm.figures.scale import Scale, short

FIGURES = {
    "bars": bars([Bar("naive", 0.9, "1 %"), Bar("tensor <core> & more", 300.0, "35 %", 1)], "TFLOP/s", "Ladder", limit=766.0),
    "bars, long remarks": bars(
        [Bar("256 x 1024: split_tensor_core", 4.1, "contiguous; 96 % of a copy, 1.31 times the library of the same run"), Bar("b", 1.0)],
        "TB/s",
        "Ladder",
        limit=5.0,
    ),
    "bars, log": bars([Bar("a", 1e-3), Bar("b", 1e3)], "s", "Ladder", limit=1e4, log=True, caption="recorded on an H200"),
    "curves": curves({"one": [(1, 2.0), (7, 3.0)], "two": [(1, 1.0), (7, 9.0)]}, "context", "ms", "Time"),
    "curves, log": curves({"one": [(1, 2.0), (1e6, 3e3)]}, "context", "ms", "Time", log_x=True, log_y=True),
    "curves to a long number": curves({"one": [(1, 2.0), (1000, 9.0)]}, "tokens", "µs", "Time", log_x=True),
    "curves, all zero": curves({"waiting": [(0.0, 0.0), (5.0, 0.0)]}, "seconds", "requests", "Batch", marks=False),
    "curves, long names": curves(
        {f"a series with a rather long name, {i}": [(i, 1.0), (7, 9.0)] for i in range(5)}, "context", "ms", "A title of two lines " * 5
    ),
    "roofline": roofline([Dot("gemv", 1.0, 3.9), Dot("matmul", 1365.0, 305.0, measured=False)], 4.27, 766.0, "Roof"),
    "timeline": timeline([Span("copy", 0, 3, "copy"), Span("compute", 1, 9, "kernel", 1)], "ms", "Overlap"),
    "heat map": heat_map(np.array([[0.0, 0.5], [1.0, np.nan]]), "Weights", ["a", "b"], ["c", "d"], show_values=True),
}


def accesses_of(copy_kernel):
    """The first read of a copy of 32 rows of 32 float32."""
    x = np.ones((32, 32), np.float32)
    return copy_kernel.trace[(32, 1), 32](x, np.empty_like(x)).example("global", "x")


FIGURES |= {
    "accesses by rows": accesses(accesses_of(copies.copy_by_rows), "Reading", caption="counted"),
    "accesses by columns": accesses(accesses_of(copies.copy_by_columns), "Reading"),
}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_a_figure_is_well_formed_and_says_what_it_shows(figure):
    root = ElementTree.fromstring(figure._repr_html_())
    svg = root.find("{http://www.w3.org/2000/svg}svg")
    assert svg.get("role") == "img" and len(svg.get("aria-label")) > 20
    assert svg.get("aria-label").split(":")[0] in repr(figure)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_marks_stay_inside_the_frame(figure):
    svg = ElementTree.fromstring(figure.svg)
    _, _, width, height = map(float, svg.get("viewBox").split())
    for mark in svg.iter():
        for name, size in (
            ("x", width),
            ("cx", width),
            ("x1", width),
            ("x2", width),
            ("y", height),
            ("cy", height),
            ("y1", height),
            ("y2", height),
        ):
            assert -1 <= float(mark.get(name, 0)) <= size + 1, ElementTree.tostring(mark)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_centred_labels_stay_inside_the_frame(figure):
    svg = ElementTree.fromstring(figure.svg)
    width = float(svg.get("viewBox").split()[2])
    for mark in svg.iter("text" if svg.tag == "svg" else "{http://www.w3.org/2000/svg}text"):
        if mark.get("text-anchor") == "middle":
            assert float(mark.get("x")) + text_width("".join(mark.itertext())) / 2 <= width + 1, ElementTree.tostring(mark)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_colours_are_the_pages_own(figure):
    for mark in ElementTree.fromstring(figure.svg).iter():
        for name in ("fill", "stroke"):
            assert mark.get(name, "none").startswith(("none", "currentColor", "var(--course-"))


def test_figures_are_small():
    assert max(len(figure.svg) for figure in FIGURES.values()) < 6000


def test_a_longer_bar_is_a_larger_value():
    svg = ElementTree.fromstring(bars([Bar("a", 10.0), Bar("b", 20.0), Bar("c", 5.0)], "ms", "Bars").svg)
    a, b, c = (float(rect.get("width")) for rect in svg.iter("{http://www.w3.org/2000/svg}rect"))
    assert b == pytest.approx(2 * a, rel=0.01) and a == pytest.approx(2 * c, rel=0.01)


def test_charts_fit_a_phone_with_letters_of_nine_pixels():
    frame = 358  # CSS pixels beside the margins of a phone 390 wide
    for name in ("curves, long names", "roofline"):
        assert FIGURES[name].width * 9 / FONT_SIZE <= frame


def test_names_of_a_legend_do_not_overlap():
    svg = ElementTree.fromstring(FIGURES["curves, long names"].svg)
    keys = [text for text in svg.iter("{http://www.w3.org/2000/svg}text") if text.text.startswith("a series")]
    assert len({(text.get("x"), text.get("y")) for text in keys}) == 5
    assert all(float(text.get("x")) + text_width(text.text) <= FIGURES["curves, long names"].width for text in keys)


def test_long_remarks_leave_room_for_the_bars():
    svg = ElementTree.fromstring(FIGURES["bars, long remarks"].svg)
    assert max(float(rect.get("width")) for rect in svg.iter("{http://www.w3.org/2000/svg}rect")) > 150
    assert "1.31 times the library" in "".join(svg.itertext())


@given(values=st.lists(st.floats(0.02, 3), min_size=1, max_size=5), limit=st.floats(0.5, 2))
def test_values_stand_inside_bars_or_clear_of_the_limit(values, limit):
    svg = ElementTree.fromstring(bars([Bar("a bar", value) for value in values], "x", "Bars", limit=limit).svg)
    line = float(next(svg.iter("{http://www.w3.org/2000/svg}line")).get("x1"))  # the axis
    lines = {float(one.get("x1")) for one in svg.iter("{http://www.w3.org/2000/svg}line")} - {line}
    ends = [float(rect.get("x")) + float(rect.get("width")) for rect in svg.iter("{http://www.w3.org/2000/svg}rect")]
    shown = [text for text in svg.iter("{http://www.w3.org/2000/svg}text") if re.match(r"[\d.]+ x", text.text)]
    assert len(lines) == 1 and len(shown) == len(values)
    for end, text in zip(ends, shown):
        x, width = float(text.get("x")), text_width(text.text)
        first, last = (x - width, x) if text.get("text-anchor") == "end" else (x, x + width)
        assert last < end or (first > end and not first - 1 < min(lines) < last), text.text


def test_a_dot_of_bandwidth_lies_on_the_slope():
    dot = Dot.of_bandwidth("copy", 0.25, 4.0)
    assert dot.tflops == attainable(0.25, 4.0, 100.0) == 1.0


@given(low=st.floats(0.001, 10), factor=st.floats(1.5, 1e7), log=st.booleans())
def test_ticks_lie_on_the_axis_and_are_few(low, factor, log):
    scale = Scale(low, low * factor, 0.0, 100.0, log)
    ticks = scale.ticks()
    assert len(ticks) <= 8
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)
    assert [scale(tick) for tick in ticks] == sorted(scale(tick) for tick in ticks)


NUMBERS = {0: "0", 0.0125: "0.0125", 12.34: "12.3", 4096: "4,096", 1.6e7: "16M", 8.03e9: "8.03G", -250: "-250"}


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_are_short(value):
    assert short(value) == NUMBERS[value]


def test_accesses_say_how_many_sectors_move():
    assert "128 bytes requested, 4 sectors" in FIGURES["accesses by rows"].alternative
    assert "128 bytes requested, 32 sectors" in FIGURES["accesses by columns"].alternative
    assert "and 24 more rows" in FIGURES["accesses by columns"].svg


def test_no_measured_dot_is_above_the_roof():
    roofline([Dot("ring", 1.0, 5.0, measured=False), Dot("it only reads", 1.0, 4.44)], 4.27, 766.0, "Roof")
    for dot in (Dot("gemv", 1.0, 4.5), Dot("gemm", 1000.0, 770.0)):
        with pytest.raises(LessonError, match=f"{dot.name} is above the roof: {dot.tflops:.4g} TFLOP/s at"):
            roofline([dot], 4.27, 766.0, "Roof")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_for_notebooks_needs_no_variables(name):
    text = on_white(FIGURES[name].svg)
    assert "var(" not in text and "background:#fff" in text
    ElementTree.fromstring(text)
