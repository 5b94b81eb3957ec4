"""A figure as inline SVG for both light and dark pages.

Text has the page's colour, and marks have the colours of the site's CSS variables. Inline SVG is small (a chart is 2 to 10 kB), sharp at
every size, and searchable, and looks the same in a notebook as on the site.
"""

import html
import textwrap
from collections.abc import Iterable

# The site sets the variables per colour scheme. Notebooks use the fallback colours, which are readable on white and on black.
COLOURS = (
    "var(--course-1, #3b8fd4)",
    "var(--course-2, #d9772b)",
    "var(--course-3, #2f9e64)",
    "var(--course-4, #a765c0)",
    "var(--course-5, #d9485f)",
)
MUTED = "var(--course-muted, #7d8590)"
GRID = "var(--course-grid, #80808055)"
PAGE = "var(--course-page, transparent)"  # the page's background
ON_MARK = "var(--course-page, #fff)"  # text inside a mark
FONT_SIZE, SMALL = 13, 10  # letters, and numbers in small cells
NARROW, WIDE = 480.0, 640.0  # on a phone, a narrow figure fits with letters of 9 pixels, and a wide one scrolls
CHARACTER = 0.56 * FONT_SIZE  # the approximate mean width of a character, to leave room for labels


def colour(index: int) -> str:
    """The colour of series `index`; colours repeat after five."""
    return COLOURS[index % len(COLOURS)]


def text_width(text: str) -> float:
    """The approximate width of `text`; Chinese characters count twice."""
    return CHARACTER * sum(2 if ord(character) > 0x2E80 else 1 for character in text)


def element(name: str, body: str = "", **attributes: object) -> str:
    """One SVG element; underscores in attribute names become hyphens, and numbers are rounded to a tenth of a unit."""
    listed = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    return f"<{name}{listed}>{body}</{name}>" if body else f"<{name}{listed}/>"


def _value(value: object) -> str:
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1
        else f"{value:.1f}"
        if isinstance(value, float)
        else html.escape(str(value))
    )


def label(x: float, y: float, text: str, anchor: str = "start", **attributes: object) -> str:
    """A line of text; `anchor` is start, middle or end."""
    attributes.setdefault("fill", "currentColor")
    return element("text", html.escape(text, quote=False), x=float(x), y=float(y), text_anchor=anchor, **attributes)


def over_lines(x: float, y: float, text: str, anchor: str = "start", **attributes: object) -> str:
    """A line of text that stays readable over lines of the figure: outlined in the page's colour (not in a notebook)."""
    rim = {"paint_order": "stroke", "stroke": PAGE, "stroke_width": 4, "stroke_linejoin": "round"}
    return label(x, y, text, anchor, **rim, **attributes)


def title_lines(title: str, width: float) -> list[str]:
    """The title of a figure, wrapped so that its bold letters fit the width."""
    return textwrap.wrap(title, int(width / (1.1 * CHARACTER)))


def headed(title: str, width: float) -> tuple[list[str], float]:
    """(the elements of the title, the y coordinate below it)."""
    lines = title_lines(title, width)
    return [label(0, FONT_SIZE * (1 + 1.25 * i), line, font_weight=600) for i, line in enumerate(lines)], FONT_SIZE * 1.25 * len(lines)


def titled(mark: str, tooltip: str) -> str:
    """A mark that shows `tooltip` when the pointer rests on it."""
    return f"<g><title>{html.escape(tooltip, quote=False)}</title>{mark}</g>"


class Figure:
    """A picture with a caption.

    It displays itself as the last expression of a cell; `alternative` describes it in words. letters: the font size of its smallest text,
    which determines the width of the figure on a phone.
    """

    def __init__(
        self, width: float, height: float, elements: Iterable[str], alternative: str, caption: str = "", letters: int = FONT_SIZE
    ):  # fmt: skip
        self.alternative, self.caption, self.width = alternative, caption, width * FONT_SIZE / letters
        self.svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
            f'aria-label="{html.escape(alternative)}" font-size="{FONT_SIZE}" font-family="inherit">{"".join(elements)}</svg>'
        )

    def _repr_html_(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption, quote=False)}</figcaption>" if self.caption else ""
        return f'<figure class="course-figure" style="--figure-width: {self.width:.0f}">{self.svg}{caption}</figure>'

    def __repr__(self) -> str:
        return f"Figure: {self.alternative}"
