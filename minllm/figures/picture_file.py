"""A figure as a separate SVG file with its colours, for pages that show it as an image.

The colours are those of docs/assets/stylesheets/course.css; the reader's system chooses between light and dark.
"""

import re

from minllm.figures.figure import Figure

LIGHT = {"1": "#0b6bb3", "2": "#b3480b", "3": "#1b7a4b", "4": "#8a3fa0", "5": "#a3172f", "muted": "#6b7280", "grid": "#0000001f"}
DARK = {"1": "#5aa9f0", "2": "#ff9a52", "3": "#5fc58d", "4": "#cf93e6", "5": "#ff8a9b", "muted": "#a3adbd", "grid": "#ffffff2b"}
INK = {"light": "#1f2328", "dark": "#e6edf3"}
GROUND = {"light": "#ffffff", "dark": "#0d1117"}  # the colour of the page around the picture
FONT = "-apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def picture_file(figure: Figure) -> str:
    """The text of an SVG file."""
    style = (
        f"<style>svg{{{variables({**LIGHT, 'page': GROUND['light']})}color:{INK['light']};font-family:{FONT}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{variables({**DARK, 'page': GROUND['dark']})}color:{INK['dark']}}}}}</style>"
    )
    opening, _, drawn = figure.svg.partition(">")
    return f"{opening}>{style}{drawn}\n"


def on_white(svg: str) -> str:
    """An inline SVG as the text of a file in light colours on white, for notebooks, whose pages may have any colour.

    Colours replace the site's variables, and tooltips, which an image does not show, are left out: a heat map has both in every cell.
    """
    opening, _, drawn = svg.partition(">")
    style = f"<style>svg{{color:{INK['light']};font-family:{FONT};background:#fff}}</style>"
    colours = {**LIGHT, "page": "#fff"}
    drawn = re.sub(r"<title>[^<]*</title>", "", drawn)
    return f"{opening}>{style}" + re.sub(r"var\(--course-(\w+), [^)]*\)", lambda match: colours[match[1]], drawn)


def variables(colours: dict[str, str]) -> str:
    """The style sheet's variables with these colours."""
    return "".join(f"--course-{name}:{value};" for name, value in colours.items())
