"""PTX and SASS as a reader wants them: cut into pieces, each under the line of Python that it was made from.

The compiler leaves marks: `.loc` in PTX, and in a cubin a line table that nvdisasm prints as comments. A device function is inlined, and
its instructions count for the line of the kernel that calls it.
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
    """Instructions, one a line, and the line of Python that they were made from; line 0 where that is not known."""

    file: str
    line: int
    instructions: list[str]

    @property
    def place(self) -> str:
        """file:line, the file as seen from the folder that holds the package."""
        path = Path(self.file)
        inside = path.is_relative_to(PACKAGE.parent)
        return f"{path.relative_to(PACKAGE.parent) if inside else path}:{self.line}" if self.line else ""

    @property
    def source(self) -> str:
        """The line of Python."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""


def sass_pieces(disassembly: str) -> list[Piece]:
    """The pieces of what `nvdisasm -g` prints of a cubin that was compiled with line numbers."""
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
    """The pieces of PTX text that was compiled with line numbers; the debugger's sections at its end are left out."""
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
    """Begin a new piece, unless the last one is of the same line."""
    if (pieces[-1].file, pieces[-1].line) != (file, line):
        pieces.append(Piece(file, line, []))
