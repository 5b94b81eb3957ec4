"""The three cards at the top of the first page: what the simulator, the scheduler and the course show, each as a small picture."""

from itertools import pairwise
from pathlib import Path

from minllm import costs
from minllm.figures.figure import GRID, MUTED, ON_MARK, Figure, colour, element, label
from minllm.figures.picture_file import picture_file
from minllm.figures.scale import Scale
from minllm.models.shapes import named_config

FILES = Path(__file__).parents[2] / "docs/assets/charts"
WIDTH, HEIGHT = 300.0, 170.0
LENGTHS, SLOTS = (9, 4, 6, 5, 8, 3, 5, 4, 3), 3  # tokens of the requests that arrive, and how many run at a time
BANDWIDTH, RATE = 4.2e12, 800e12  # an H200's, as measured: bytes and FLOPs per second


def race() -> Figure:
    """Two threads at one element of shared memory, and no barrier between them."""
    cell, top, drawn = 46.0, 64.0, []
    for element_index in range(4):
        x = 58 + cell * element_index
        drawn.append(element("rect", x=x, y=top, width=cell, height=cell, fill="none", stroke="currentColor"))
        drawn.append(label(x + cell / 2, top + 28, f"[{element_index}]", "middle"))
    x = 58 + 1.5 * cell
    for y, end, words, series in ((18.0, top - 3, "thread 1 writes", 4), (HEIGHT - 12, top + cell + 3, "thread 0 reads", 0)):
        start = y + 8 if y < end else y - 16
        drawn.append(element("path", d=f"M{x:.0f} {start:.0f}V{end:.0f}", stroke=colour(series), stroke_width=3))
        drawn.append(label(x, y, words, "middle", fill=colour(series), font_weight=600))
    drawn.append(label(x + 1.6 * cell, 46, "no barrier: a race", "middle", fill=MUTED))
    return Figure(
        WIDTH, HEIGHT, drawn, "A race: thread 1 writes an element of shared memory that thread 0 reads, and no barrier orders them"
    )


def batching() -> Figure:
    """Requests in the slots of a batch: the next one joins as soon as another ends."""
    free = [0] * SLOTS
    spans = []
    for number, length in enumerate(LENGTHS):
        slot = min(range(SLOTS), key=free.__getitem__)
        spans.append((number, slot, free[slot], free[slot] + length))
        free[slot] += length
    x, drawn = Scale(0, max(free), 4, WIDTH - 4), []
    for number, slot, begin, end in spans:
        y = 14 + 42 * slot
        drawn.append(element("rect", x=x(begin) + 1, y=y, width=x(end) - x(begin) - 2, height=34, rx=3, fill=colour(number)))
        drawn.append(label((x(begin) + x(end)) / 2, y + 22, str(number + 1), "middle", fill=ON_MARK, font_weight=600))
    drawn.append(label(WIDTH / 2, HEIGHT - 12, "decode steps: one token per request", "middle", fill=MUTED))
    return Figure(WIDTH, HEIGHT, drawn, "Continuous batching: nine requests in three slots, each joins when another ends")


def roofline() -> Figure:
    """The roof of an H200, and the 8B shape's decode step and prefill under it."""
    config, ridge = named_config("llama-3.1-8b"), RATE / BANDWIDTH
    x, y = Scale(0.4, 4000, 8, WIDTH - 8, log=True), Scale(0.4 * BANDWIDTH, 3 * RATE, HEIGHT - 24, 6, log=True)
    roof = [(one, min(RATE, one * BANDWIDTH)) for one in (0.4, ridge, 4000)]
    drawn = [
        element("line", x1=x(a), y1=y(b), x2=x(c), y2=y(d), stroke="currentColor", stroke_width=2) for (a, b), (c, d) in pairwise(roof)
    ]
    drawn.append(element("line", x1=8, x2=WIDTH - 8, y1=HEIGHT - 24, y2=HEIGHT - 24, stroke=GRID))
    for name, cost, series in (
        ("decode", costs.decode_step(config, batch=1, context=1024), 1),
        ("prefill", costs.prefill(config, 2048), 0),
    ):
        place = x(cost.arithmetic_intensity), y(min(RATE, cost.arithmetic_intensity * BANDWIDTH))
        drawn.append(element("circle", cx=place[0], cy=place[1], r=7, fill=colour(series)))
        drawn.append(label(place[0] + (12 if series else 0), place[1] + (6 if series else 24), name, "start" if series else "middle"))
    drawn.append(label(WIDTH / 2, HEIGHT - 8, "FLOP per byte", "middle", fill=MUTED))
    return Figure(
        WIDTH, HEIGHT, drawn, "A roofline: a decode step lies on the slope of memory bandwidth, a prefill under the flat roof of arithmetic"
    )


CARDS = (
    (race, "Kernels that a simulator checks", "It finds races without a GPU and names the line and both threads.", "simulator.md"),
    (batching, "Requests that share a step", "Play with batching, paged caches, speculation and experts in the browser.", "batching.md"),
    (roofline, "Predict, then measure", "A course that computes each limit before it shows the measurement.", "lessons.md"),
)


def cards(picture) -> str:
    """The cards as Markdown; picture(name, figure) is how a figure is shown."""
    parts = [
        f"<div markdown>\n\n{picture(draw.__name__, draw())}\n\n**[{title}]({page})**\n\n{text}\n\n</div>"
        for draw, title, text, page in CARDS
    ]
    return '<div class="home-paths home-cards" markdown>\n' + "\n".join(parts) + "\n</div>"


def inline() -> str:
    """The cards with pictures in the site's colours."""
    return cards(lambda name, figure: figure._repr_html_())


def with_images() -> str:
    """The cards with pictures from files."""
    return cards(lambda name, figure: f"![{figure.alternative}](assets/charts/{name}.svg)")


def files() -> dict[Path, str]:
    """{path: text} of the pictures' files."""
    return {FILES / f"{draw.__name__}.svg": picture_file(draw()) for draw, *_ in CARDS}
