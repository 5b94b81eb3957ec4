"""Horizontal bars: a ladder of variants, probabilities of tokens, parts of a whole."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from minllm.figures.figure import (
    CHARACTER,
    FONT_SIZE,
    GRID,
    MUTED,
    NARROW,
    ON_MARK,
    WIDE,
    Figure,
    colour,
    element,
    headed,
    label,
    over_lines,
    text_width,
    titled,
)
from minllm.figures.scale import Scale, short

ROW, BAR, REMARK = 26.0, 16.0, 15.0
LEAST_PLOT = 0.34  # share of the width for the longest bar; remarks that would leave less are put below the bars


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its value, a remark after the value, and its colour (0 to 4)."""

    name: str
    value: float
    remark: str = ""
    colour: int = 0


def bars(
    items: Sequence[Bar], unit: str, title: str, limit: float | None = None, limit_name: str = "limit", log: bool = False,
    caption: str = "", width: float | None = None,
) -> Figure:  # fmt: skip
    """A figure of horizontal bars, with `limit` as a dashed line.

    log: a logarithmic axis, for values that differ by orders of magnitude; it begins a little below the smallest value.
    width: NARROW, or WIDE if the names and values leave too little room in that.
    """
    name_width = min(250.0, 1.15 * max(text_width(item.name) for item in items) + 10)  # digits are wider than most letters
    if width is None:
        taken = name_width + max(text_width(f"{short(item.value)} {unit}") for item in items) + 14
        width = NARROW if taken < (1 - LEAST_PLOT) * NARROW else WIDE
    value_width = max(text_width(f"{short(item.value)} {unit} {item.remark}") for item in items) + 14
    below = width - name_width - value_width < LEAST_PLOT * width
    if below:
        value_width = max(text_width(f"{short(item.value)} {unit}") for item in items) + 14
    remarks = [textwrap.wrap(item.remark, int((width - name_width) / CHARACTER)) if below else [] for item in items]
    rows = [ROW + REMARK * len(lines) for lines in remarks]
    drawn, below_title = headed(title, width)
    top = below_title + 0.95 * FONT_SIZE
    bottom = top + sum(rows)
    height = bottom + (1.6 * FONT_SIZE if limit is not None else 6)
    most = max([item.value for item in items] + ([limit] if limit is not None else []))
    least = min(item.value for item in items if item.value > 0) / 2 if log else 0.0
    x = Scale(least, most or 1.0, name_width, width - value_width, log)
    apart = below or not any(item.remark for item in items)
    if apart and all(is_inside(f"{short(item.value)} {unit}", x(item.value) - name_width) for item in items):
        x = Scale(least, most or 1.0, name_width, width - 14, log)  # no value needs room after its bar
    if limit is not None:
        for row in range(len(items)):  # beside the bars only, not through the remarks below them
            y = top + sum(rows[:row])
            until = y + (BAR + 4 if remarks[row] else rows[row])
            drawn.append(element("line", x1=x(limit), x2=x(limit), y1=y - 6, y2=until, stroke=MUTED, stroke_dasharray="4 3"))
        named = f"{limit_name} {short(limit)} {unit}"
        drawn.append(label(min(x(limit), width - text_width(named) / 2), bottom + FONT_SIZE, named, "middle", fill=MUTED))
    for row, item in enumerate(items):
        y = top + sum(rows[:row])
        end = x(item.value)
        text = f"{short(item.value)} {unit}"
        drawn += [
            label(name_width - 8, y + 13, item.name, "end"),
            titled(
                element("rect", x=name_width, y=y, width=max(1.0, end - name_width), height=BAR, rx=2, fill=colour(item.colour)),
                f"{item.name}: {text}",
            ),
        ]
        after = value_end(drawn, name_width, end, y + 13, text, None if limit is None else x(limit))
        drawn += [over_lines(name_width + 4, y + BAR + REMARK * (i + 0.9), line, fill=MUTED) for i, line in enumerate(remarks[row])]
        if item.remark and not below:
            drawn.append(over_lines(after, y + 13, item.remark, fill=MUTED))
    drawn.insert(1, element("line", x1=name_width, x2=name_width, y1=top - 6, y2=bottom, stroke=GRID))
    spoken = "; ".join(f"{item.name} {short(item.value)} {unit}" for item in items)
    return Figure(
        width, height, drawn, f"{title}: {spoken}" + (f"; {limit_name} {short(limit)} {unit}" if limit is not None else ""), caption
    )


def value_end(drawn: list[str], start: float, end: float, y: float, text: str, limit: float | None) -> float:
    """Draw the value of a bar from start to end: inside if it fits, else after it and clear of the limit; returns x for a remark."""
    width = text_width(text)
    crosses = limit is not None and end - 4 < limit < end + width + 10
    after = (limit if crosses else end) + 6
    if is_inside(text, end - start):
        drawn.append(label(end - 6, y, text, "end", fill=ON_MARK))
        return after
    drawn.append(over_lines(after, y, text))
    return after + 6 + width


def is_inside(text: str, bar: float) -> bool:
    """Whether a value fits into a bar of this width."""
    return 1.15 * text_width(text) + 12 < bar
