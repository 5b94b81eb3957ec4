"""The frame of a chart with two axes: grid, ticks and names. Curves and rooflines draw on it."""

from dataclasses import dataclass

from minllm.figures.figure import FONT_SIZE, GRID, MUTED, element, label
from minllm.figures.scale import Scale, short

WIDTH, HEIGHT = 640.0, 378.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 56.0, 46.0  # TOP: title, name of the y axis, and room for a tick at the top of the axis


@dataclass(frozen=True)
class Plane:
    """Two axes. `x_range` and `y_range` are (low, high)."""

    title: str
    x_name: str
    y_name: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_log: bool = False
    y_log: bool = False

    @property
    def x(self) -> Scale:
        return Scale(*self.x_range, LEFT, WIDTH - RIGHT, self.x_log)

    @property
    def y(self) -> Scale:
        return Scale(*self.y_range, HEIGHT - BOTTOM, TOP, self.y_log)

    def frame(self) -> list[str]:
        """Title, grid, ticks, names of the axes."""
        x, y = self.x, self.y
        drawn = [label(0, FONT_SIZE, self.title, font_weight=600)]
        for tick in x.ticks():
            drawn.append(element("line", x1=x(tick), x2=x(tick), y1=TOP, y2=HEIGHT - BOTTOM, stroke=GRID))
            drawn.append(label(x(tick), HEIGHT - BOTTOM + 16, short(tick), "middle", fill=MUTED))
        for tick in y.ticks():
            drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), stroke=GRID))
            drawn.append(label(LEFT - 6, y(tick) + 4, short(tick), "end", fill=MUTED))
        drawn.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, self.x_name, "middle"))
        drawn.append(label(0, TOP - 16, self.y_name, fill=MUTED))
        return drawn
