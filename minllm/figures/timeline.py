"""Events over time on several lanes: kernels on streams, copies behind computation, requests in a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

from minllm.figures.figure import FONT_SIZE, GRID, MUTED, Figure, colour, element, label, text_width, titled
from minllm.figures.scale import Scale, short

WIDTH, ROW, BAR, TOP = 640.0, 30.0, 20.0, 34.0


@dataclass(frozen=True)
class Span:
    """Something that occupies `lane` from `start` to `end`, in the timeline's unit."""

    lane: str
    start: float
    end: float
    name: str = ""
    colour: int = 0


def timeline(spans: Sequence[Span], unit: str, title: str, caption: str = "") -> Figure:
    """A figure with one lane per name, in order of appearance; time runs to the right from the first start."""
    lanes = list(dict.fromkeys(span.lane for span in spans))
    left = max(text_width(lane) for lane in lanes) + 10
    x = Scale(min(span.start for span in spans), max(span.end for span in spans), left, WIDTH - 36)
    bottom = TOP + ROW * len(lanes)
    drawn = [label(0, FONT_SIZE, title, font_weight=600)]
    for tick in x.ticks():
        drawn.append(element("line", x1=x(tick), x2=x(tick), y1=TOP - 6, y2=bottom, stroke=GRID))
        drawn.append(label(x(tick), bottom + 14, f"{short(tick)} {unit}", "middle", fill=MUTED))
    drawn += [label(left - 8, TOP + ROW * row + 14, lane, "end") for row, lane in enumerate(lanes)]
    for span in spans:
        y, width = TOP + ROW * lanes.index(span.lane), max(1.0, x(span.end) - x(span.start))
        mark = element(
            "rect",
            x=x(span.start),
            y=y,
            width=width,
            height=BAR,
            rx=2,
            fill=colour(span.colour),
            fill_opacity=0.35,
            stroke=colour(span.colour),
        )
        drawn.append(titled(mark, f"{span.name or span.lane}: {short(span.start)} to {short(span.end)} {unit}"))
        if text_width(span.name) < width - 4:
            drawn.append(label(x(span.start) + width / 2, y + 14, span.name, "middle"))
    spoken = "; ".join(f"{span.lane}: {span.name} {short(span.start)} to {short(span.end)} {unit}" for span in spans[:20])
    return Figure(WIDTH, bottom + 1.8 * FONT_SIZE, drawn, f"{title}: {spoken}", caption)
