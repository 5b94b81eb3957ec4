"""Exercises in a source file: finds the region between two marker comments, and replaces it.

    # exercise: matmul.naive
    ...                                 the solution
    # end exercise

`blank` replaces the solution by a hint and a NotImplementedError and changes nothing else; `fill` restores the solution. Skeletons are made
from the package itself on every request, so they cannot differ from it; exercise_slice.py says what of it they hold.
"""

import ast
import functools
import re
import textwrap
from dataclasses import dataclass

from minllm.errors import ExerciseError

START = re.compile(r"(?P<indent>\s*)# exercise: (?P<name>[a-z0-9_.]+)\n")
END = re.compile(r"\s*# end exercise\n")
LINE = 110  # characters per line of a hint


@dataclass(frozen=True)
class Region:
    """The lines of an exercise in a text, first to stop - 1, counted from 0, without the markers."""

    name: str
    first: int
    stop: int
    indent: str


def regions(text: str) -> dict[str, Region]:
    """{name: Region} of all exercises of a source text. Raises ExerciseError if markers do not pair."""
    found, open_region = {}, None
    for number, line in enumerate(text.splitlines(keepends=True)):
        if start := START.fullmatch(line):
            if open_region is not None:
                raise ExerciseError(f"line {number + 1}: exercise {start['name']} begins inside exercise {open_region[0]}")
            open_region = start["name"], number + 1, start["indent"]
        elif END.fullmatch(line):
            if open_region is None:
                raise ExerciseError(f"line {number + 1}: an exercise ends that has not begun")
            name, first, indent = open_region
            if name in found:
                raise ExerciseError(f"line {first}: a second exercise is called {name}")
            found[name], open_region = Region(name, first, number, indent), None
    if open_region is not None:
        raise ExerciseError(f"line {open_region[1]}: exercise {open_region[0]} does not end")
    return found


def region(text: str, name: str) -> Region:
    """The region of one exercise of a source text. Raises ExerciseError if its markers are missing."""
    found = regions(text)
    if name not in found:
        raise ExerciseError(f"the file has no lines `# exercise: {name}` and `# end exercise`: keep both, and write between them")
    return found[name]


def solution(text: str, name: str) -> str:
    """The lines of an exercise, as one string."""
    found = region(text, name)
    return "".join(text.splitlines(keepends=True)[found.first : found.stop])


def fill(text: str, name: str, lines: str) -> str:
    """The text with these lines in place of the exercise."""
    found, all_lines = region(text, name), text.splitlines(keepends=True)
    return "".join([*all_lines[: found.first], lines, *all_lines[found.stop :]])


def blank(text: str, name: str, task: str) -> str:
    """The text with a hint and a NotImplementedError in place of the exercise."""
    indent = region(text, name).indent
    count = sum(1 for line in solution(text, name).splitlines() if line.strip() and not line.strip().startswith("#"))
    hint = f"FILL IN: about {count} {'lines' if count > 1 else 'line'}. {task}"
    lines = [f"# {line}".rstrip() for paragraph in hint.splitlines() for line in wrapped(paragraph, LINE - len(indent))]
    lines.append(f'raise NotImplementedError("{name} is not filled in yet")')
    return fill(text, name, "".join(f"{indent}{line}\n" for line in lines))


def wrapped(paragraph: str, width: int) -> list[str]:
    """The lines of a paragraph; one that is indented is part of a picture, and stays."""
    if not paragraph or paragraph.startswith(" "):
        return [paragraph]
    return textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False)


def holder(text: str, name: str) -> str:
    """The name of the top-level function or class that contains an exercise."""
    return statement_around(text, name).name


@functools.lru_cache(256)
def statement_around(text: str, name: str) -> ast.stmt:
    """The syntax-tree node of the top-level function or class that contains an exercise."""
    found = region(text, name)
    for statement in ast.parse(text).body:
        if first_line(statement) <= found.first and found.stop <= statement.end_lineno + 1 and hasattr(statement, "name"):
            return statement
    raise ExerciseError(f"exercise {name} is not inside a function")


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, counted from 1, including its decorators."""
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])


def parts(text: str, name: str) -> tuple[str, str, str]:
    """The whole text in three parts: (text before, the function with the exercise, text after)."""
    statement, lines = statement_around(text, name), text.splitlines(keepends=True)
    first, stop = first_line(statement) - 1, max(statement.end_lineno, region(text, name).stop + 1)
    return "".join(lines[:first]), "".join(lines[first:stop]), "".join(lines[stop:])
