"""Lines over one axis: time against context, acceptance against temperature, loss against bits."""

from collections.abc import Mapping, Sequence

from minllm.figures.figure import FONT_SIZE, Figure, colour, element, label, text_width, titled
from minllm.figures.plane import HEIGHT, LEFT, RIGHT, WIDTH, Plane
from minllm.figures.scale import short

DASHES = (None, "6 3", "2 3", "8 3 2 3", "1 4")  # so that lines differ by more than their colour


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
    drawn, key_x = plane.frame(), LEFT
    for index, (name, points) in enumerate(series.items()):
        places = [(plane.x(x), plane.y(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(
            element(
                "polyline", points=path, fill="none", stroke=colour(index), stroke_width=2, stroke_dasharray=DASHES[index % len(DASHES)]
            )
        )
        for (x, y), (value_x, value_y) in zip(places, points) if marks else ():
            mark = element("circle", cx=x, cy=y, r=3, fill=colour(index))
            drawn.append(titled(mark, f"{name}: {short(value_y)} at {short(value_x)}"))
        drawn.append(
            element(
                "line",
                x1=key_x,
                x2=key_x + 22,
                y1=HEIGHT + 8,
                y2=HEIGHT + 8,
                stroke=colour(index),
                stroke_width=2,
                stroke_dasharray=DASHES[index % len(DASHES)],
            )
        )
        drawn.append(label(key_x + 28, HEIGHT + 12, name))
        key_x = min(WIDTH - RIGHT, key_x + 52 + 1.1 * text_width(name))
    spoken = "; ".join(
        f"{name}: {short(points[0][1])} at {short(points[0][0])} to {short(points[-1][1])} at {short(points[-1][0])}"
        for name, points in series.items()
    )
    return Figure(WIDTH, HEIGHT + 2 * FONT_SIZE, drawn, f"{title}: {y_name} over {x_name}. {spoken}", caption)
