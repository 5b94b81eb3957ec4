"""A figure as a separate SVG file with its colours, for pages that show it as an image.

The colours are those of docs/assets/stylesheets/course.css; the reader's system chooses between light and dark.
"""

from minllm.figures.figure import Figure

LIGHT = {"1": "#0b6bb3", "2": "#b3480b", "3": "#1b7a4b", "4": "#8a3fa0", "5": "#a3172f", "muted": "#6b7280", "grid": "#0000001f"}
DARK = {"1": "#5aa9f0", "2": "#ff9a52", "3": "#5fc58d", "4": "#cf93e6", "5": "#ff8a9b", "muted": "#a3adbd", "grid": "#ffffff2b"}
INK = {"light": "#1f2328", "dark": "#e6edf3"}
FONT = "-apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def picture_file(figure: Figure) -> str:
    """The text of an SVG file."""
    style = (
        f"<style>svg{{{variables(LIGHT)}color:{INK['light']};font-family:{FONT}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{variables(DARK)}color:{INK['dark']}}}}}</style>"
    )
    opening, _, drawn = figure.svg.partition(">")
    return f"{opening}>{style}{drawn}\n"


def variables(colours: dict[str, str]) -> str:
    """The style sheet's variables with these colours."""
    return "".join(f"--course-{name}:{value};" for name, value in colours.items())
