"""Listings of PTX and SASS: the instructions of each line of Python.

Line numbers come from `.loc` in PTX, and from a cubin's line table, which nvdisasm prints as comments. Device functions are inlined: their
instructions belong to the line of the kernel that calls them.
"""

import linecache
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
SASS_LINE = re.compile(r'//## File "(?P<file>.*?)", line (?P<line>\d+)')
SASS_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?);")
SASS_LABEL = re.compile(r"^\s*(?P<text>\.L_\w+:)")
PTX_FILE = re.compile(r'^\s*\.file\s+(?P<number>\d+)\s+"(?P<file>.*?)"', re.M)
PTX_LINE = re.compile(r"^\s*\.loc\s+(?P<number>\d+)\s+(?P<line>\d+)")


@dataclass
class Piece:
    """Consecutive instructions of one line of Python; line is 0 if unknown."""

    file: str
    line: int
    instructions: list[str]

    @property
    def place(self) -> str:
        """file:line, with the file relative to the folder that holds the package."""
        path = Path(self.file)
        inside = path.is_relative_to(PACKAGE.parent)
        return f"{path.relative_to(PACKAGE.parent) if inside else path}:{self.line}" if self.line else ""

    @property
    def source(self) -> str:
        """The line of Python."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""


def sass_pieces(disassembly: str) -> list[Piece]:
    """The pieces of the output of `nvdisasm -g` for a cubin with line numbers."""
    pieces = [Piece("", 0, [])]
    for text in disassembly.splitlines():
        if mark := SASS_LINE.search(text):
            move_to(pieces, mark["file"], int(mark["line"]))
        elif found := SASS_INSTRUCTION.search(text):
            pieces[-1].instructions.append("    " + re.sub(r"\s+", " ", found["text"]).strip())
        elif found := SASS_LABEL.match(text):
            pieces[-1].instructions.append(found["text"])
    return [piece for piece in pieces if piece.instructions]


def ptx_pieces(ptx: str) -> list[Piece]:
    """The pieces of PTX text with line numbers, without the debug sections at its end."""
    files = {found["number"]: found["file"] for found in PTX_FILE.finditer(ptx)}
    pieces = [Piece("", 0, [])]
    for text in ptx.splitlines():
        if text.lstrip().startswith(".section"):
            break
        if mark := PTX_LINE.match(text):
            move_to(pieces, files.get(mark["number"], ""), int(mark["line"]))
        elif text.strip() and not PTX_FILE.match(text):
            pieces[-1].instructions.append(text.rstrip())
    return [piece for piece in pieces if piece.instructions]


def move_to(pieces: list[Piece], file: str, line: int) -> None:
    """Append a new, empty piece, unless the last one has the same line."""
    if (pieces[-1].file, pieces[-1].line) != (file, line):
        pieces.append(Piece(file, line, []))
