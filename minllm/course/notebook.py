"""Runs the text and the cells of a lesson, one after another, in a notebook that is already open, such as a hosted one."""

from pathlib import Path

from minllm.errors import LessonError


def run_lesson(path: str | Path) -> None:
    """Show a lesson's text and run its cells as if they were in this notebook.

    Raises LessonError at the first cell that fails.
    """
    import jupytext
    from IPython import get_ipython
    from IPython.display import Markdown, display

    shell, path = get_ipython(), Path(path)
    if shell is None:
        raise LessonError(f"{path} is run from inside a notebook: `jupyter notebook` opens one, and tools/run_lessons.py needs none.")
    if not path.exists():
        there = ", ".join(sorted(found.name for found in path.parent.glob("[0-9][0-9]_*.py"))) or "no lesson"
        raise LessonError(f"There is no {path}; {path.parent} has {there}.")
    for number, cell in enumerate(jupytext.read(path).cells, start=1):
        if cell.cell_type == "markdown":
            display(Markdown(cell.source))
        elif cell.cell_type == "code":
            result = shell.run_cell(cell.source)
            if not result.success:
                raise LessonError(f"Cell {number} of {path.name} failed: {result.error_before_exec or result.error_in_exec!r}")
