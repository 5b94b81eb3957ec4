"""Lines over one axis: time against context, acceptance against temperature, loss against bits."""

from collections.abc import Mapping, Sequence

from minllm.figures.figure import FONT_SIZE, Figure, colour, element, label, text_width, titled
from minllm.figures.plane import LEFT, RIGHT, WIDTH, Plane
from minllm.figures.scale import short

KEY = 28.0  # width of a line in the legend
DASHES = (None, "6 3", "2 3", "8 3 2 3", "1 4")  # lines differ in dash as well as in colour


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
    caption: str = "",
    marks: bool = True,
) -> Figure:
    """One line per entry of `series`, name -> [(x, y), ...]. A linear axis of values begins at 0.

    log_x, log_y: logarithmic axes, for positive values only. marks: a dot with a tooltip at each point, for lines of few points.
    """
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    y_low = min(ys) if log_y else min(0.0, *ys)
    plane = Plane(title, x_name, y_name, (min(xs), max(xs)), (y_low, max(ys) * (1.15 if not log_y else 1.5) or 1.0), log_x, log_y)
    drawn = plane.frame()
    for index, (name, points) in enumerate(series.items()):
        places = [(plane.x(x), plane.y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(element("polyline", points=path, fill="none", **stroke(index)))
        for (x, y), (value_x, value_y) in zip(places, points) if marks else ():
            mark = element("circle", cx=x, cy=y, r=3, fill=colour(index))
            drawn.append(titled(mark, f"{name}: {short(value_y)} at {short(value_x)}"))
    keys, height = legend(list(series), plane.height)
    spoken = "; ".join(
        f"{name}: {short(points[0][1])} at {short(points[0][0])} to {short(points[-1][1])} at {short(points[-1][0])}"
        for name, points in series.items()
    )
    return Figure(WIDTH, height, drawn + keys, f"{title}: {y_name} over {x_name}. {spoken}", caption)


def stroke(index: int) -> dict[str, object]:
    """The attributes of a series' line."""
    return dict(stroke=colour(index), stroke_width=2, stroke_dasharray=DASHES[index % len(DASHES)])


def legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """(elements: a line and a name for each series, in rows below `top`; the y coordinate below them)."""
    drawn, x, y = [], LEFT, top + 8
    for index, name in enumerate(names):
        width = KEY + 1.1 * text_width(name)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 1.5 * FONT_SIZE
        drawn.append(element("line", x1=x, x2=x + KEY - 6, y1=y, y2=y, **stroke(index)))
        drawn.append(label(x + KEY, y + 4, name))
        x += width + 24
    return drawn, y + 1.4 * FONT_SIZE
