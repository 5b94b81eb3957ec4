"""The frame of a chart with two axes: grid, ticks and names. Curves and rooflines draw on it."""

from dataclasses import dataclass

from minllm.figures.figure import FONT_SIZE, GRID, MUTED, NARROW, element, headed, label, text_width, title_lines
from minllm.figures.scale import Scale, short

WIDTH, PLOT = NARROW, 250.0  # width of the figure, height of the plot area
LEFT, RIGHT, BOTTOM = 56.0, 14.0, 46.0
ABOVE = 40.0  # between title and plot: the name of the y axis, and space for a tick label at the upper end


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
    def top(self) -> float:
        """The y coordinate of the upper end of the plot."""
        return FONT_SIZE * 1.25 * len(title_lines(self.title, WIDTH)) + ABOVE

    @property
    def height(self) -> float:
        """The figure's height, names of the axes included."""
        return self.top + PLOT + BOTTOM

    @property
    def x(self) -> Scale:
        return Scale(*self.x_range, LEFT, WIDTH - RIGHT, self.x_log)

    @property
    def y(self) -> Scale:
        return Scale(*self.y_range, self.top + PLOT, self.top, self.y_log)

    def frame(self) -> list[str]:
        """The elements of the title, grid, ticks and axis names."""
        x, y, top, bottom = self.x, self.y, self.top, self.top + PLOT
        drawn, below = headed(self.title, WIDTH)
        for tick in x.ticks():
            drawn.append(element("line", x1=x(tick), x2=x(tick), y1=top, y2=bottom, stroke=GRID))
            centre = min(x(tick), WIDTH - text_width(short(tick)) / 2)  # a long number at the axis's end stays inside the figure
            drawn.append(label(centre, bottom + 16, short(tick), "middle", fill=MUTED))
        for tick in y.ticks():
            drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), stroke=GRID))
            drawn.append(label(LEFT - 6, y(tick) + 4, short(tick), "end", fill=MUTED))
        drawn.append(label((LEFT + WIDTH - RIGHT) / 2, self.height - 8, self.x_name, "middle"))
        drawn.append(label(0, below + 1.35 * FONT_SIZE, self.y_name, fill=MUTED))
        return drawn
