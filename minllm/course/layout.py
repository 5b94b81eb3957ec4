"""The layout of a page: source code wrapped to its width, with the same tokens in the same order, and blocks that a click opens.

A comment at the end of a long line moves above it; a line that is still too long breaks at commas or operators of its outermost bracket.
"""

import io
import textwrap
import tokenize
from dataclasses import dataclass, field

WIDTH = 88  # characters that fit in a code block between both columns of navigation, at 1,280 pixels
INDENT = 4
OPERATORS = "+ - * / // % | & << >> == != < > <= >= and or if else for in not"
BEFORE = set(OPERATORS.split())  # a line may break before these


@dataclass
class Line:
    """Facts about a line from its tokens; breaks: where it may break, [(depth, column)]."""

    comment: int | None = None  # column of its comment
    in_text: bool = False  # whether it is part of a docstring
    depth: int = 0  # number of open brackets at the beginning of the line
    breaks: list[tuple[int, int]] = field(default_factory=list)


def wrapped(text: str, width: int = WIDTH) -> list[list[str]]:
    """For each line of a function's or class's source, the lines of the page that show it."""
    described = describe(text)
    return [
        [line] if len(line) <= width else prose(line, width) if one.in_text else code(line, one, width)
        for line, one in zip(text.splitlines(), described)
    ]


def describe(text: str) -> list[Line]:
    """The Line of each line of a text."""
    lines = [Line() for _ in text.splitlines()]
    depth, last_row = 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (row, column), (end_row, end_column) = token.start, token.end
        for passed in range(last_row, min(row, len(lines))):
            lines[passed].depth = depth
        last_row = max(last_row, row)
        if token.type == tokenize.COMMENT:
            lines[row - 1].comment = column
        elif token.type == tokenize.STRING and token.string.endswith('"""'):
            for inside in range(row - 1, end_row):
                lines[inside].in_text = True
        elif token.type in (tokenize.OP, tokenize.NAME):
            depth -= token.string in (")", "]", "}")
            if depth and token.string == ",":
                lines[row - 1].breaks.append((depth, end_column))
            elif token.string in BEFORE:
                lines[row - 1].breaks.append((depth or 99, column))  # breaks outside of brackets are the last resort
            depth += token.string in ("(", "[", "{")
            if token.string in ("(", "[", "{"):
                lines[row - 1].breaks.append((depth + 10, end_column))  # after an opening bracket, if no other break fits
    return lines


def prose(line: str, width: int) -> list[str]:
    """A line of a docstring, wrapped."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True, break_long_words=False, break_on_hyphens=False)


def code(line: str, one: Line, width: int) -> list[str]:
    """A line of code, wrapped, with its comment above it."""
    indent = line[: len(line) - len(line.lstrip())]
    if one.comment is None:
        return broken(line, one.breaks, width)
    above = textwrap.wrap(line[one.comment :].lstrip("# "), width - len(indent) - 2, break_long_words=False)
    rest = line[: one.comment].rstrip()
    return [f"{indent}# {part}" for part in above] + (broken(rest, one.breaks, width) if rest else [])


def broken(line: str, breaks: list[tuple[int, int]], width: int) -> list[str]:
    """A line of code in pieces, each cut at the last break of the least depth that fits."""
    indent = len(line) - len(line.lstrip())
    pieces, begin, first = [], 0, True
    while True:
        room = width if first else width - indent - INDENT + begin
        if len(line) <= room:
            break
        possible = [(depth, column) for depth, column in breaks if begin + indent < column <= room and line[begin:column].strip()]
        if not possible:
            break
        least = min(depth for depth, _ in possible)
        cut = max(column for depth, column in possible if depth == least)
        pieces.append((line[begin:cut].rstrip(), " \\" if least == 99 else ""))
        begin = cut + len(line[cut:]) - len(line[cut:].lstrip())
        first = False
    pieces.append((line[begin:].rstrip(), ""))
    return [(piece if number == 0 else " " * (indent + INDENT) + piece) + joint for number, (piece, joint) in enumerate(pieces)]


def closed(title: str, body: str, kind: str = "tip") -> str:
    """A collapsed block that opens on a click, as Markdown for the site and for notebooks."""
    return f'<details class="{kind}" markdown="1">\n<summary>{title}</summary>\n\n{body}\n\n</details>'
