"""Draw docs/assets/race.svg, ten seconds of the README: a barrier goes, two threads meet at one element, and the simulator names the race.

    python tools/site/race_picture.py

The kernel is that of home/rms_norm.py, and the finding, its threads and its element are the simulator's own words. The reader's system
chooses light or dark, and a still picture if it asks for less motion.
"""

import html
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import home_page

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "race.svg"
WIDTH, LINE, TOP, LEFT = 760, 19, 30, 16
CELL_X, CELL_Y, CELL = 626, 80, 34
FINDING = re.compile(r"this thread writes squares\[(?P<element>\d+)\].*thread \((?P<reader>\d+), 0, 0\) reads at rms_norm\.py:(?P<line>\d+)"
                     r".*thread \((?P<writer>\d+), 0, 0\)\)", re.DOTALL)  # fmt: skip
STYLE = """
svg { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
svg { --ink: #1f2328; --page: #f6f8fa; --red: #b42318; --blue: #0b6bb3 }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --page: #161b22; --red: #ff8a7a; --blue: #5aa9f0 } }
text { fill: var(--ink); white-space: pre } .red { fill: var(--red) } .blue { fill: var(--blue) } .page { fill: var(--page) }
.cell { fill: none; stroke: var(--ink) } .strike { stroke: var(--red); stroke-width: 2 }
.to { stroke-width: 2; fill: none } .to.red { stroke: var(--red) } .to.blue { stroke: var(--blue) }
.strike, .barrier, .read, .write, .found { animation: 10s infinite both }
.strike { animation-name: strike } .barrier { animation-name: barrier }
.read { animation-name: read } .write { animation-name: write } .found { animation-name: found }
@keyframes strike { 0%, 14% { opacity: 0 } 18%, 97% { opacity: 1 } 100% { opacity: 0 } }
@keyframes barrier { 0%, 20% { opacity: 1 } 26%, 97% { opacity: .3 } 100% { opacity: 1 } }
@keyframes read { 0%, 32% { opacity: 0 } 36%, 97% { opacity: 1 } 100% { opacity: 0 } }
@keyframes write { 0%, 44% { opacity: 0 } 48%, 97% { opacity: 1 } 100% { opacity: 0 } }
@keyframes found { 0%, 58% { opacity: 0 } 62%, 97% { opacity: 1 } 100% { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { .strike, .read, .write, .found { animation: none } .barrier { animation: none; opacity: .3 } }
"""


def lines_of(block: str) -> list[str]:
    """The lines inside a fenced block."""
    return block.splitlines()[1:-1]


def text(x: float, line: float, words: str, kind: str = "") -> str:
    """A line of text."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{TOP + LINE * line:.0f}"{named}>{html.escape(words, quote=False)}</text>'


def arrow(thread: str, element: int, kind: str, colour: str, what: str) -> str:
    """A thread's access of an element: its label on the left or right of the cell, and a line to the cell."""
    y = CELL_Y + CELL * element + CELL / 2
    side = -1 if kind == "read" else 1
    end = CELL_X + (0 if side < 0 else CELL)
    label_x = end + side * 24
    anchor = "end" if side < 0 else "start"
    return (
        f'<g class="{kind}"><path class="to {colour}" d="M{label_x} {y} H{end}"/><text class="{colour}" x="{label_x + side * 4}" '
        f'y="{y + 4}" text-anchor="{anchor}">{what}</text><text class="{colour}" x="{label_x + side * 4}" y="{y + 4 - LINE}" '
        f'text-anchor="{anchor}">thread {thread}</text></g>'
    )


def picture() -> str:
    """The SVG."""
    code, found = lines_of(home_page.kernel()), lines_of(home_page.race())
    told = FINDING.search("\n".join(found))
    barrier = code.index(home_page.BARRIER.rstrip("\n"))
    drawn = [text(LEFT, number, line, "barrier" if number == barrier else "") for number, line in enumerate(code)]
    y = TOP + LINE * barrier - 4
    drawn.append(f'<path class="strike" d="M{LEFT + 60} {y} H{LEFT + 205}"/>')
    for element in range(4):
        top = CELL_Y + CELL * element
        drawn.append(f'<rect class="cell" x="{CELL_X}" y="{top}" width="{CELL}" height="{CELL}"/>')
        drawn.append(f'<text x="{CELL_X + CELL / 2}" y="{top + 22}" text-anchor="middle">[{element}]</text>')
    drawn.append(f'<text x="{CELL_X + CELL / 2}" y="{CELL_Y - 8}" text-anchor="middle">squares</text>')
    drawn.append(arrow(told["reader"], int(told["element"]), "read", "blue", "reads"))
    drawn.append(arrow(told["writer"], int(told["element"]), "write", "red", "writes"))
    words = (text(LEFT, len(code) + 0.6 + number, line, "red") for number, line in enumerate(found))
    drawn.append(f'<g class="found">{"".join(words)}</g>')
    height = TOP + LINE * (len(code) + len(found)) + 14
    label = f"Without the barrier in the loop, thread {told['writer']} writes what thread {told['reader']} reads: {' '.join(found)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">'
        f'<style>{STYLE}</style><rect class="page" width="{WIDTH}" height="{height}" rx="8"/>{"".join(drawn)}</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
