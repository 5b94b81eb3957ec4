"""Draws the roofline, the attainable speed at each arithmetic intensity, with kernels as dots below it.

    attainable(I) = min(peak, bandwidth * I)          I in FLOPs per byte

Left of the ridge a kernel is memory-bound (the slope), right of it compute-bound (the flat roof) (Williams, Waterman and Patterson, CACM
52 (2009), section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minllm.errors import LessonError
from minllm.figures.figure import FONT_SIZE, MUTED, Figure, colour, element, label, over_lines, text_width, titled
from minllm.figures.plane import RIGHT, WIDTH, Plane
from minllm.figures.scale import short

READS_OVER_COPY = 1.05  # kernels that only read exceed the rate of a copy: by 4 % on an H200


@dataclass(frozen=True)
class Dot:
    """A kernel or a step: arithmetic intensity in FLOPs per byte, speed in TFLOP/s.

    `measured` False draws a ring, for a prediction; the name "" draws no label.
    """

    name: str
    intensity: float
    tflops: float
    measured: bool = True
    colour: int = 0

    @classmethod
    def of_bandwidth(cls, name: str, intensity: float, tb_s: float, **options) -> "Dot":
        """A dot from a speed in TB/s: TFLOP/s = TB/s * FLOP per byte."""
        return cls(name, intensity, tb_s * intensity, **options)


def attainable(intensity: float, bandwidth_tb_s: float, peak_tflops: float) -> float:
    """The highest TFLOP/s at an arithmetic intensity."""
    return min(peak_tflops, bandwidth_tb_s * intensity)


def roofline(dots: Sequence[Dot], bandwidth_tb_s: float, peak_tflops: float, title: str, caption: str = "") -> Figure:
    """The roofline of one machine with `dots` below it, both axes logarithmic.

    bandwidth_tb_s: the rate of a copy. Raises LessonError for a measured dot above the roof of reads, READS_OVER_COPY times as high on the
    slope: its bytes did not come from this memory, or its intensity is another.
    """
    for dot in dots:
        if dot.measured and dot.tflops > attainable(dot.intensity, READS_OVER_COPY * bandwidth_tb_s, peak_tflops):
            raise LessonError(f"{dot.name or 'A dot'} is above the roof: {dot.tflops:.4g} TFLOP/s at {dot.intensity:.3g} FLOP per byte.")
    ridge = peak_tflops / bandwidth_tb_s
    x_low = min([0.1, *(dot.intensity / 2 for dot in dots)])
    x_high = max([ridge * 30, *(dot.intensity * 2 for dot in dots)])
    y_low = min([attainable(x_low, bandwidth_tb_s, peak_tflops), *(dot.tflops / 2 for dot in dots)])
    plane = Plane(title, "arithmetic intensity, FLOP per byte", "TFLOP/s", (x_low, x_high), (y_low, peak_tflops * 2.5), True, True)
    x, y = plane.x, plane.y
    roof = [(x_low, attainable(x_low, bandwidth_tb_s, peak_tflops)), (ridge, peak_tflops), (x_high, peak_tflops)]
    path = " ".join(f"{x(intensity):.1f},{y(tflops):.1f}" for intensity, tflops in roof)
    drawn = plane.frame()
    drawn.append(element("polyline", points=path, fill="none", stroke="currentColor", stroke_width=2))
    roof_name = f"{short(peak_tflops)} TFLOP/s, from {short(ridge)} FLOP per byte on"
    drawn.append(label(WIDTH - RIGHT, y(peak_tflops) - 8, roof_name, "end", fill=MUTED))
    middle = (x_low * ridge) ** 0.5
    halfway = y(attainable(middle, bandwidth_tb_s, peak_tflops))
    drawn.append(label(x(middle) - 8, halfway - 4, f"{bandwidth_tb_s:.3g} TB/s", "end", fill=MUTED))
    for dot in dots:
        share = dot.tflops / attainable(dot.intensity, bandwidth_tb_s, peak_tflops)
        fill = colour(dot.colour) if dot.measured else "none"
        mark = element("circle", cx=x(dot.intensity), cy=y(dot.tflops), r=5, fill=fill, stroke=colour(dot.colour), stroke_width=2)
        drawn.append(
            titled(mark, f"{dot.name}: {short(dot.tflops)} TFLOP/s, {100 * share:.0f} % of what {short(dot.intensity)} FLOP per byte allow")
        )
    drawn += dot_names(dots, plane)
    spoken = "; ".join(f"{dot.name} {short(dot.tflops)} TFLOP/s at {short(dot.intensity)} FLOP per byte" for dot in dots)
    ceiling = f"{bandwidth_tb_s:.3g} TB/s and {short(peak_tflops)} TFLOP/s"
    return Figure(WIDTH, plane.height, drawn, f"{title}: a roof of {ceiling}. {spoken}", caption)


def dot_names(dots: Sequence[Dot], plane: Plane) -> list[str]:
    """The names beside the dots, each moved down until it does not overlap earlier ones."""
    drawn, taken = [], []
    for dot in sorted((dot for dot in dots if dot.name), key=lambda one: -one.tflops):
        px, py = plane.x(dot.intensity), plane.y(dot.tflops) + 4
        width = text_width(dot.name)
        left = px + 10 if px + 10 + width < WIDTH - RIGHT else px - 10 - width
        while any(
            abs(py - other_y) < FONT_SIZE and left < other_right and other_left < left + width for other_left, other_right, other_y in taken
        ):
            py += FONT_SIZE
        taken.append((left, left + width, py))
        drawn.append(over_lines(left, py, dot.name))
    return drawn
