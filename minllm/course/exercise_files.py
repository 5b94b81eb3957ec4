"""Writes the reader's working files: for each exercise a Python file and a notebook, and one test file for the folder."""

import json
from pathlib import Path

from minllm.course.exercise import Exercise
from minllm.course.exercise_markers import blank, holder, parts
from minllm.course.exercise_page import literal
from minllm.course.exercise_slice import sliced
from minllm.errors import ExerciseError

TEST_FILE = "test_exercises.py"
TEST = '''"""pytest in this folder checks every exercise's file."""

from pathlib import Path

import pytest

from minllm.course.checks import check_file

FILES = sorted(path for path in Path(__file__).parent.glob("*.py") if "# exercise: " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [path for path in FILES if path != Path(__file__)], ids=lambda path: path.stem)
def test_exercise(path):
    report = check_file(path)
    assert report.passed, f"\\n{report}"
'''


def skeleton(exercise: Exercise) -> str:
    """The text of the reader's file."""
    return blank(solved(exercise), exercise.name, exercise.task)


def solved(exercise: Exercise) -> str:
    """The text of the reader's file with the package's solution in it."""
    return sliced(exercise.source, exercise.name, exercise.module, f"Lesson {exercise.lesson}: {exercise.title}.")


def notebook(exercise: Exercise) -> dict:
    """The skeleton as a notebook (nbformat 4.5): code before the function, the function, code after it, and the check."""
    before, function, after = parts(skeleton(exercise), exercise.name)
    name = holder(exercise.source, exercise.name)
    hints = "\n".join(f"<details><summary>Hint {i}</summary>{literal(hint)}</details>\n" for i, hint in enumerate(exercise.hints, 1))
    cells = [
        markdown(f"# {exercise.name}: {exercise.title}\n\nLesson {exercise.lesson}. {literal(exercise.task)}\n\n{hints}"),
        code(before),
        markdown("Write the part that is marked `FILL IN`, run the cell, then check it below. No GPU is needed."),
        code(function),
        *([markdown("What else the file holds:"), code(after)] if after.strip() else []),
        code(f'from minllm.course.checks import check\n\ncheck("{exercise.name}", {name})'),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def markdown(text: str) -> dict:
    """A text cell of a notebook."""
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def code(text: str) -> dict:
    """A code cell of a notebook."""
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": text.splitlines(keepends=True)}


def write(exercises: list[Exercise], directory: Path, force: bool = False) -> list[Path]:
    """Write the files of some exercises into a folder, creating it if needed; returns the paths.

    Raises ExerciseError and writes nothing if a file exists, because it may hold a reader's work, unless `force`.
    """
    texts = {}
    for exercise in exercises:
        path = directory / exercise.file_name
        texts[path] = skeleton(exercise)
        texts[path.with_suffix(".ipynb")] = json.dumps(notebook(exercise), indent=1) + "\n"
    in_the_way = [path for path in texts if path.exists()]
    if in_the_way and not force:
        raise ExerciseError(
            f"{', '.join(map(str, in_the_way))} {'are' if len(in_the_way) > 1 else 'is'} there already and may hold your work: "
            "give another folder, or --force to begin anew"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExerciseError(f"{directory} cannot be made: {error.strerror}; give another folder") from None
    texts[directory / TEST_FILE] = TEST
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)
