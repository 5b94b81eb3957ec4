"""Pictures (SVG) of a trace: sectors, shared-memory banks, pipeline timeline.

Colours stand for lanes or groups. Text and lines follow the viewer's light or dark scheme.
"""

from html import escape
from pathlib import Path

from minllm.sim.traffic import BANK_BYTES, BANKS, SECTOR_BYTES, lanes_served_together

CELL, LEFT, TOP = 22, 96, 46
LINE_BYTES = 128
STYLE = """<style>
text { font: 11px system-ui, sans-serif; fill: #1b1f24; } .in { fill: #10131a; text-anchor: middle; } .title { font-weight: 600; }
.mid { text-anchor: middle; } .end { text-anchor: end; } .idle { fill: #8883; } .sector { fill: none; stroke: #1b1f24; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) { text { fill: #e6e9ee; } .in { fill: #10131a; } .sector { stroke: #e6e9ee; } }
</style>"""


class Picture(str):
    """A string with an SVG picture, which notebooks display."""

    def _repr_svg_(self):
        return str(self)

    def save(self, path):
        """Write the picture to a file."""
        Path(path).write_text(self, encoding="utf-8")


def picture(title, parts, width, height):
    """A Picture of SVG elements (`parts`) under a title; width and height in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return Picture("\n".join([head, f"<title>{escape(title)}</title>", STYLE, label(8, 18, title, "title"), *parts, "</svg>"]))


def label(x, y, text, style=""):
    """An SVG element with a line of text; style: a CSS class."""
    return f'<text x="{x}" y="{y}" class="{style}">{escape(str(text))}</text>'


def box(x, y, width, height, colour=None, style="", hint=""):
    """An SVG rectangle; style: a CSS class; hint: a tooltip."""
    fill = f' fill="{colour}"' if colour else ""
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" class="{style}"{fill}'
    return f"{shape}><title>{escape(hint)}</title></rect>" if hint else f"{shape}/>"


def colour(number, count=32):
    """A colour of medium lightness: legible under dark text and on light and dark pages."""
    return f"hsl({number % count * 360 // count}, 62%, 66%)"


def lane_cell(x, y, lanes, hint):
    """SVG elements for a cell that one or several lanes access, labelled with the lane or the number of lanes."""
    lanes = sorted(set(lanes))
    text = str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}"
    named = f"{hint}: lane{'s' if len(lanes) > 1 else ''} {', '.join(map(str, lanes))}"
    return [
        box(x, y, CELL - 2, CELL - 2, colour(lanes[0]), hint=named),
        label(x + CELL / 2 - 1, y + CELL / 2 + 3, text, "in"),
    ]


def words_of(accesses):
    """{word number: lanes that access any of its 4 bytes}, for LaneAccesses."""
    words = {}
    for lane, start, width in accesses:
        for word in range(start // BANK_BYTES, (start + width - 1) // BANK_BYTES + 1):
            words.setdefault(word, []).append(lane)
    return words


def access_map(request):
    """A Picture of a Request to global memory: rows of 128 bytes, lanes, and moved sectors."""
    words = words_of(request.lanes)
    rows = sorted({word * BANK_BYTES // LINE_BYTES for word in words})
    touched = {word * BANK_BYTES // SECTOR_BYTES for word in words}
    parts, words_a_sector = [], SECTOR_BYTES // BANK_BYTES
    for place, row in enumerate(rows):
        y = TOP + place * CELL
        parts.append(label(LEFT - 8, y + 14, f"byte {row * LINE_BYTES:,}", "end"))
        for cell in range(LINE_BYTES // BANK_BYTES):
            x, word = LEFT + cell * CELL, row * LINE_BYTES // BANK_BYTES + cell
            if word in words:
                parts += lane_cell(x, y, words[word], f"bytes {word * BANK_BYTES} to {word * BANK_BYTES + 3}")
            elif word // words_a_sector in touched:
                parts.append(box(x, y, CELL - 2, CELL - 2, style="idle", hint="moved, not asked for"))
        for sector in range(LINE_BYTES // SECTOR_BYTES):
            if row * LINE_BYTES // SECTOR_BYTES + sector in touched:
                width = words_a_sector * CELL
                parts.append(box(LEFT + sector * width - 1, y - 1, width - 1, CELL, style="sector"))
    asked = sum(access.width for access in request.lanes)
    moved = f"{asked} bytes requested, {len(touched)} sectors moved"
    title = f"{request.kind} of {request.array}, {request.place}, line {request.line}: {moved}"
    return picture(title, parts, LEFT + BANKS * CELL + 8, TOP + len(rows) * CELL + 8)


def bank_map(request):
    """A Picture of a Request to shared memory: one row per turn, one column per bank, with the lanes that are served."""
    lanes_at_once = lanes_served_together(max(access.width for access in request.lanes))
    parts = [label(LEFT + bank * CELL + CELL / 2 - 1, TOP - 6, bank, "mid") for bank in range(BANKS)]
    row, groups = 0, sorted({access.lane // lanes_at_once for access in request.lanes})
    for group in groups:
        waiting = {}
        for word, lanes in sorted(words_of(a for a in request.lanes if a.lane // lanes_at_once == group).items()):
            # A bank serves one word per turn; atomic changes of a word take one turn per lane.
            turns = [[lane] for lane in lanes] if request.kind == "atomic" else [lanes]
            waiting.setdefault(word % BANKS, []).extend((word, served) for served in turns)
        for turn in range(max(map(len, waiting.values()))):
            y = TOP + row * CELL
            parts.append(label(LEFT - 8, y + 14, f"turn {row + 1}", "end"))
            for bank in range(BANKS):
                x = LEFT + bank * CELL
                if turn < len(waiting.get(bank, ())):
                    word, served = waiting[bank][turn]
                    parts += lane_cell(x, y, served, f"bank {bank}, address {word * BANK_BYTES}")
                else:
                    parts.append(box(x, y, CELL - 2, CELL - 2, style="idle"))
            row += 1
    what = f"{request.kind} of {request.array or 'shared memory'}, {request.place}, line {request.line}"
    title = f"{what}: {row} turn{'s' if row > 1 else ''}, {len(groups)} at least"
    return picture(title, parts, LEFT + BANKS * CELL + 8, TOP + row * CELL + 8)


def timeline(trace):
    """A Picture of a Trace's pipeline: copy groups as bars from issue to arrival, above the FLOPs of each step.

    A row is a slot in the ring of stages: a group takes the first free slot.
    """
    steps, width = len(trace.step_flops), max(3 * CELL, 18)
    free_from, parts = [], [label(LEFT + step * width + width / 2, TOP - 6, step, "mid") for step in range(steps)]
    for group in (group for group in trace.pipeline if group.copies):
        end = steps if group.arrived is None else group.arrived
        row = next((row for row, free in enumerate(free_from) if free <= group.issued), len(free_from))
        free_from[row : row + 1] = [end]
        x, y, length = LEFT + group.issued * width, TOP + row * CELL, (end - group.issued) * width
        when = "nobody waits for it" if group.arrived is None else f"there from step {group.arrived} on"
        hint = f"group {group.number}, line {group.line}: {group.copies} copies, {group.bytes} bytes, {when}"
        parts += [box(x, y, length - 2, CELL - 2, colour(group.number, 8), hint=hint)]
        parts += [label(x + length / 2, y + 14, f"group {group.number}", "in")]
    bottom, most = TOP + (len(free_from) + 2) * CELL, max(trace.step_flops)
    for step, count in enumerate(trace.step_flops):
        if count:
            height = max(2, count * 2 * CELL // most - 4)
            parts.append(box(LEFT + step * width, bottom - height, width - 2, height, "hsl(210, 55%, 60%)", hint=f"{count:,} operations"))
    names = [label(LEFT - 8, TOP - 6, "step", "end"), label(LEFT - 8, TOP + 14, "under way", "end")]
    names.append(label(LEFT - 8, bottom - 6, "operations", "end"))
    title = f"{trace.kernel}: asynchronous copies, and tensor-core operations between the waits for them"
    return picture(title, parts + names, max(LEFT + steps * width, 720) + 8, bottom + 8)
