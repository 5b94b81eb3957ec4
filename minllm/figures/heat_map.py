"""A matrix as coloured cells: attention weights, masks, bank conflicts, errors of a quantisation."""

from collections.abc import Sequence

import numpy as np

from minllm.figures.figure import FONT_SIZE, GRID, MUTED, SMALL, Figure, colour, element, label, text_width, titled
from minllm.figures.scale import short

WIDTH, TOP, LARGEST_CELL = 640.0, 30.0, 34.0
MOST_TOLD = 400  # cells; larger maps have no tooltips, which would make a page heavy


def heat_map(
    values: np.ndarray,
    title: str,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    show_values: bool = False,
    caption: str = "",
    series: int = 0,
) -> Figure:
    """A figure of `values` [rows, columns], at least 0 and at most a few thousand cells.

    The largest value has the strongest colour; 0 and NaN have none.
    """
    values = np.asarray(values, dtype=np.float64)
    rows, columns = values.shape
    left = max((text_width(name) for name in row_names), default=0.0) + 10 if row_names else 0.0
    cell = min(LARGEST_CELL, (WIDTH - left) / columns)
    longest = max((text_width(name) for name in column_names), default=0.0) if column_names else 0.0
    most = float(np.nanmax(values)) or 1.0
    drawn, marks = [label(0, FONT_SIZE, title, font_weight=600)], []
    told = rows * columns <= MOST_TOLD
    for (row, column), value in np.ndenumerate(values):
        x, y = left + column * cell, TOP + row * cell
        opacity = 0.0 if np.isnan(value) else float(value) / most * (0.5 if show_values else 1)  # weaker colours keep numbers readable
        if told:
            mark = element("rect", x=x, y=y, width=cell, height=cell, fill_opacity=opacity)
            marks.append(titled(mark, f"row {row}, column {column}: {short(value)}"))
        elif opacity >= 0.005:
            marks.append(f'<path d="M{x:.1f} {y:.1f}h{cell:.1f}v{cell:.1f}h-{cell:.1f}z" fill-opacity="{opacity:.2f}"/>')
        if show_values and not np.isnan(value):
            drawn.append(label(x + cell / 2, y + cell / 2 + 4, short(value), "middle", font_size=SMALL))
    bottom = TOP + rows * cell
    lines = [f"M{left:.1f} {TOP + row * cell:.1f}h{columns * cell:.1f}" for row in range(rows + 1)]
    lines += [f"M{left + column * cell:.1f} {TOP:.1f}v{rows * cell:.1f}" for column in range(columns + 1)]
    drawn.insert(1, element("g", "".join(marks), fill=colour(series)))
    drawn.insert(2, element("path", d="".join(lines), stroke=GRID, stroke_width=0.5, fill="none"))
    for row, name in enumerate(row_names or []):
        drawn.append(label(left - 6, TOP + (row + 0.5) * cell + 4, name, "end", fill=MUTED))
    for column, name in enumerate(column_names or []):
        x = left + (column + 0.5) * cell
        drawn.append(label(x + 4, bottom + 6, name, "end", fill=MUTED, transform=f"rotate(-90 {x + 4:.1f} {bottom + 6:.1f})"))
    height = bottom + (longest + 10 if column_names else 4)
    alternative = f"{title}: a matrix of {rows} rows and {columns} columns, values from {short(np.nanmin(values))} to {short(most)}"
    return Figure(WIDTH, height, drawn, alternative, caption, SMALL if show_values else FONT_SIZE)
