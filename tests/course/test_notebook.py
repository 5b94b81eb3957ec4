"""A lesson inside a notebook that is open already."""

import pytest

from minllm.course.notebook import run_lesson
from minllm.errors import LessonError

LESSON = """# %% [markdown]
# # Two numbers

# %%
first = 20

# %%
first + 22
"""


@pytest.fixture
def shell(tmp_path):
    pytest.importorskip("jupytext")  # here, because its import takes seconds, which every test process would spend while it collects
    shells = pytest.importorskip("IPython.core.interactiveshell")
    yield shells.InteractiveShell.instance()
    shells.InteractiveShell.clear_instance()


@pytest.fixture
def lesson(tmp_path):
    path = tmp_path / "01_two_numbers.py"
    path.write_text(LESSON)
    return path


def test_cells_run_in_the_notebook_and_texts_are_shown(shell, lesson, capsys):
    run_lesson(lesson)
    assert shell.user_ns["first"] == 20 and shell.user_ns["_"] == 42
    shown = capsys.readouterr().out
    assert "Markdown" in shown and "42" in shown


def test_it_stops_at_a_cell_that_fails(shell, lesson):
    lesson.write_text(LESSON.replace("first + 22", "first / 0") + "\n# %%\nlater = 1\n")
    with pytest.raises(LessonError, match="Cell 3 of 01_two_numbers.py failed: ZeroDivisionError"):
        run_lesson(lesson)
    assert "later" not in shell.user_ns


def test_mistakes_are_named(shell, lesson):
    with pytest.raises(LessonError, match="has 01_two_numbers.py"):
        run_lesson(lesson.parent / "02_other.py")


def test_without_a_notebook_it_says_so(lesson):
    with pytest.raises(LessonError, match="inside a notebook"):
        run_lesson(lesson)
