"""Draws coalescing: the bytes of global memory that each thread of a warp accesses, and the moved sectors.

    accesses(trace.example("global", "x"), "Reading x")

The request comes from a trace of the simulator. A row shows 128 bytes of the array, and a cell 4 bytes. A number in a cell is the lane that
accesses it, a frame is a moved sector of 32 bytes, and an empty cell in a frame is moved but not used.
"""

from minllm.figures.figure import FONT_SIZE, MUTED, SMALL, Figure, colour, element, label
from minllm.sim.trace_numbers import Request
from minllm.sim.trace_pictures import LINE_BYTES, words_of
from minllm.sim.traffic import BANK_BYTES, SECTOR_BYTES

WIDTH, LEFT, TOP, MOST_ROWS = 640.0, 92.0, 32.0, 8
WORDS, WORDS_A_SECTOR = LINE_BYTES // BANK_BYTES, SECTOR_BYTES // BANK_BYTES
CELL = (WIDTH - LEFT) / WORDS


def accesses(request: Request, title: str, caption: str = "", series: int = 0) -> Figure:
    """A figure of one request of a warp, with at most the first eight of its rows."""
    words = words_of(request.lanes)
    sectors = sorted({word // WORDS_A_SECTOR for word in words})
    lines = sorted({word // WORDS for word in words})
    asked = sum(access.width for access in request.lanes)
    told = f"{asked} bytes requested, {len(sectors)} sectors of {SECTOR_BYTES} bytes move"
    drawn = [label(0, FONT_SIZE, f"{title}: {told}", font_weight=600)]
    for row, line in enumerate(lines[:MOST_ROWS]):
        y = TOP + row * (CELL + 4)
        drawn.append(label(LEFT - 8, y + CELL / 2 + 4, f"byte {line * LINE_BYTES:,}", "end", fill=MUTED))
        for sector in (sector for sector in sectors if sector * WORDS_A_SECTOR // WORDS == line):
            x = LEFT + sector * WORDS_A_SECTOR % WORDS * CELL
            drawn.append(
                element("rect", x=x, y=y, width=WORDS_A_SECTOR * CELL, height=CELL, fill="none", stroke="currentColor", stroke_width=1.5)
            )
        drawn += cells([(word % WORDS, lanes[0]) for word, lanes in words.items() if word // WORDS == line], y, series)
    height = TOP + min(len(lines), MOST_ROWS) * (CELL + 4) + 4
    if len(lines) > MOST_ROWS:
        drawn.append(label(LEFT, height + FONT_SIZE, f"and {len(lines) - MOST_ROWS} more rows like these", fill=MUTED))
        height += 1.6 * FONT_SIZE
    return Figure(WIDTH, height, drawn, f"{title}: {told}, in {len(lines)} rows of {LINE_BYTES} bytes", caption, SMALL)


def cells(asked: list[tuple[int, int]], y: float, series: int) -> list[str]:
    """Coloured cells of a row, each with the number of the first lane that accessed it; asked: (column, lane)."""
    size = CELL - 2
    path = "".join(f"M{LEFT + column * CELL + 1:.1f} {y + 1:.1f}h{size:.1f}v{size:.1f}h-{size:.1f}z" for column, _ in asked)
    numbers = "".join(element("text", str(lane), x=LEFT + (column + 0.5) * CELL, y=y + CELL / 2 + 4) for column, lane in asked)
    return [
        element("path", d=path, fill=colour(series), fill_opacity=0.35),
        element("g", numbers, text_anchor="middle", font_size=SMALL, fill="currentColor"),
    ]
