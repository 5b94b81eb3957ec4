"""Detective cases: a module of the package with one thing in it changed, as somebody might have written it.

    broken = damaged(rms_norm, "float32(hidden) + epsilon", "float32(BLOCK) + epsilon")
    show_damaged(broken, "rms_norm_kernel")
    broken.rms_norm(x, weight, out, 1e-5)

The rest is the package's own source, read when the lesson runs: a case cannot fall behind it, and fails where the text is gone.
"""

import ast
import linecache
from pathlib import Path
from types import ModuleType

from minllm.course.checks.learner import run_source
from minllm.course.source import EXERCISE_MARKER, Source
from minllm.errors import LessonError


def damaged(module: ModuleType, original: str, replacement: str = "") -> ModuleType:
    """A new module: the source of `module` with `replacement` for `original`, which must stand in it exactly once.

    The simulator's findings name its file "damaged_NAME.py". Raises LessonError where the text is not there, or more than once.
    """
    text = EXERCISE_MARKER.sub("", Path(module.__file__).read_text(encoding="utf-8"))
    if text.count(original) != 1:
        raise LessonError(f"{original!r} stands {text.count(original)} times in {module.__name__}; a case changes one place.")
    name = f"damaged_{Path(module.__file__).name}"
    text = text.replace(original, replacement)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for tracebacks and the simulator's findings
    return run_source(text, name, Path(name).stem)


def show_damaged(module: ModuleType, name: str) -> Source:
    """The source of one of its functions, without its docstring: what the reader is to find the mistake in."""
    lines = linecache.cache[module.__file__][2]
    for statement in ast.walk(ast.parse("".join(lines))):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            first = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
            kept = range(first, statement.end_lineno + 1)
            if ast.get_docstring(statement):
                documented = statement.body[0]
                kept = [number for number in kept if not documented.lineno <= number <= documented.end_lineno]
            indent = statement.col_offset
            return Source("", first, "".join(lines[number - 1][indent:] or "\n" for number in kept).rstrip(), {})
    raise LessonError(f"{module.__file__} has no function {name!r}")
