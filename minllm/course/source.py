"""Shows the package's source on a lesson's page, never a copy, so that the lesson explains the code that runs.

    show_source(gemv_kernel)
    show_source(gemv_kernel, notes={"load_128_streaming": "A weight is used once, so it need not stay in L1."})
    show_source(gemv_kernel, folded="The production kernel, gemv")

A note becomes a numbered annotation on the first line that contains its text; if there is no such line, the lesson fails. Long lines are
wrapped for the page (layout.py); `folded` collapses the block until a reader opens it.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import minllm
from minllm.course.layout import closed, wrapped
from minllm.errors import LessonError

ROOT = Path(minllm.__file__).parent.parent
EXERCISE_MARKER = re.compile(r"^\s*# (?:end )?exercise\b.*\n", re.MULTILINE)


class Source:
    """A part of a file that displays itself as a highlighted block with its location, and with notes below."""

    def __init__(self, path: str, first_line: int, last_line: int, text: str, notes: Mapping[str, str], folded: str = ""):
        self.path, self.first_line, self.last_line, self.text, self.folded = path, first_line, last_line, text, folded
        self.annotated, self.notes = annotate(text, notes)

    def _repr_markdown_(self) -> str:
        block = f"~~~~python\n{self.annotated}\n~~~~"
        listed = "\n".join(f"{number}.  {note}" for number, note in enumerate(self.notes, 1))
        place = f"*[{self.path}](../{self.path}#__codelineno-0-{self.first_line}), lines {self.first_line} to {self.last_line}*"
        whole = "\n\n".join(part for part in (block, listed, place) if part)
        return closed(self.folded, whole, "abstract") if self.folded else whole

    def __repr__(self) -> str:
        return f"# {self.path}, line {self.first_line}\n{self.text}"


def show_source(subject, notes: Mapping[str, str] | None = None, docstring: bool = True, part: str = "", folded: str = "") -> Source:
    """The source of a function, class, kernel or kernel factory of this package; `docstring=False` omits its docstring.

    part: the name of an inner function, to show only that. folded: the title of a block that a click opens, for production code.
    """
    function = plain_function(subject)
    try:
        lines, first_line = inspect.getsourcelines(function)
        path = Path(inspect.getsourcefile(function)).resolve().relative_to(ROOT.resolve()).as_posix()
    except (OSError, TypeError, ValueError) as error:
        raise LessonError(f"{subject!r} has no source in this package: give a function, class or kernel of minllm.") from error
    if part:
        lines, first_line = lines_of_part(lines, first_line, part)
    text = EXERCISE_MARKER.sub("", textwrap.dedent("".join(lines))).rstrip()
    last_line = first_line + len(lines) - 1  # in the file, including markers and docstring
    return Source(path, first_line, last_line, text if docstring else without_docstring(text), notes or {}, folded)


def lines_of_part(lines: list[str], first_line: int, part: str) -> tuple[list[str], int]:
    """(the lines of the function `part` within these, decorators included; the number of the first)."""
    (whole,) = ast.parse(textwrap.dedent("".join(lines))).body
    for node in ast.walk(whole):
        if node is not whole and isinstance(node, ast.FunctionDef) and node.name == part:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return lines[first - 1 : node.end_lineno], first_line + first - 1
    raise LessonError(f"There is no function {part!r} inside the source that begins at line {first_line}.")


def plain_function(subject):
    """The Python function inside a kernel, a cached factory or a device function."""
    subject = inspect.unwrap(subject)
    return getattr(subject, "py_func", None) or subject


def without_docstring(text: str) -> str:
    """A function's or class's source without its docstring."""
    first = ast.parse(text).body[0].body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
        return text
    lines = text.splitlines()
    return "\n".join(lines[: first.lineno - 1] + lines[first.end_lineno :])


def annotate(text: str, notes: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the code, wrapped for a page, with `# (1)!` on the first line that contains a note's text; the notes in that order)."""
    lines = text.splitlines()
    places = {}
    for wanted, note in notes.items():
        line = next((number for number, line in enumerate(lines) if wanted in line), None)
        if line is None:
            raise LessonError(f"No line of the source holds {wanted!r}, where a note should stand. The source is now:\n{text}")
        places.setdefault(line, []).append(note)
    ordered, shown = [], wrapped(text)
    for line in sorted(places):
        ordered.append(" ".join(places[line]))
        shown[line][-1] += f"  # ({len(ordered)})!"
    return "\n".join(piece for pieces in shown for piece in pieces), ordered
