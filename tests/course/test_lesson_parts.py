"""What lessons show beside figures: source, recorded measurements, predictions."""

import ast
import json
from pathlib import Path

import pytest

from minllm.course import Prediction, load_record, recorded, show_source
from minllm.course.exercise_page import literal
from minllm.course.layout import WIDTH, wrapped
from minllm.course.quantity import parse_quantity
from minllm.errors import LessonError
from minllm.kernels.matmul.gemv import sums as gemv_sums
from minllm.kernels.matmul.ladder import naive
from minllm.kernels.normalization import rms_norm
from tests.course.quantities import QUANTITIES

ROOT = Path(__file__).parents[2]


def body(markdown: str) -> str:
    return markdown.split("~~~~python\n")[1].split("\n~~~~")[0]


SUBJECTS = [naive.matmul_naive_kernel, gemv_sums.dot_float32, rms_norm.rms_norm_vector_kernel, rms_norm.rms_norm]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.__name__)
def test_source_on_a_page_is_the_files_own(subject):
    shown = show_source(subject)
    lines = (ROOT / shown.path).read_text().splitlines()[shown.first_line - 1 :]
    own = [line for line in lines if "# exercise:" not in line and "# end exercise" not in line]
    assert own[: len(shown.text.splitlines())] == shown.text.splitlines()
    assert f"(../{shown.path}#" in shown._repr_markdown_()
    file_lines = (ROOT / shown.path).read_text().splitlines()
    assert file_lines[shown.last_line - 1].strip() in (shown.text.splitlines()[-1].strip(), "# end exercise")


def test_a_part_of_a_factory_is_shown_by_its_name():
    shown = show_source(rms_norm.rms_norm_vector_kernel, part="rms_norm_vector_kernel", docstring=False)
    lines = (ROOT / shown.path).read_text().splitlines()
    assert shown.text.startswith("@kernel") and "def rms_norm_vector_kernel(x" in shown.text
    assert lines[shown.first_line - 1].strip() == shown.text.splitlines()[0] and "return rms_norm_vector_kernel" not in shown.text
    with pytest.raises(LessonError, match="no function 'other'"):
        show_source(rms_norm.rms_norm_vector_kernel, part="other")


def test_production_code_can_be_folded_with_a_link_to_its_lines():
    shown = show_source(naive.matmul_naive_kernel, folded="The kernel")
    page = shown._repr_markdown_()
    assert page.startswith('<details class="abstract" markdown="1">\n<summary>The kernel</summary>\n\n~~~~python\n')
    assert f"(../{shown.path}#__codelineno-0-{shown.first_line})" in page


@pytest.mark.parametrize("subject", [*SUBJECTS, Prediction], ids=lambda s: s.__name__)
def test_lines_are_laid_out_for_the_page_and_mean_the_same(subject):
    shown = show_source(subject)
    lines = [line for pieces in wrapped(shown.text) for line in pieces]
    assert meaning("\n".join(lines)) == meaning(shown.text)
    assert not [line for line in lines if len(line) > WIDTH and "'" not in line and '"' not in line]  # texts do not break


def meaning(text: str) -> str:
    """A source's syntax tree, its texts without line ends."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.dump(tree)


def test_a_comment_behind_a_long_line_moves_above_it():
    assert wrapped("def f(x):\n    return x + 1  # a comment that is far too long for the line\n", 40)[1] == [
        "    # a comment that is far too long for",
        "    # the line",
        "    return x + 1",
    ]


def test_a_docstring_can_be_left_out():
    without = show_source(rms_norm.rms_norm_reference, docstring=False).text
    assert '"""' not in without and "mean_square" in without


def test_notes_stand_on_their_lines_in_order():
    markdown = show_source(gemv_sums.dot_float32, notes={"return total": "the sum", "def dot": "the name"})._repr_markdown_()
    assert "def dot_float32(a, b, total):  # (1)!" in body(markdown)
    assert "uint_as_float(b)  # (2)!" in body(markdown)
    assert markdown.index("1.  the name") < markdown.index("2.  the sum")


def test_a_note_whose_line_is_gone_fails_the_lesson():
    with pytest.raises(LessonError, match="no such line"):
        show_source(gemv_sums.dot_float32, notes={"no such line": "x"})


def test_source_from_elsewhere_is_refused():
    with pytest.raises(LessonError):
        show_source(json.loads)


def test_exercise_markers_are_not_shown(tmp_path):
    from minllm.course.source import EXERCISE_MARKER

    assert EXERCISE_MARKER.sub("", "a\n    # exercise: stage.name\n    b\n    # end exercise\n") == "a\n    b\n"


def test_the_record_of_the_package_is_that_of_the_repository():
    assert load_record() == json.loads((ROOT / "docs" / "results" / "h200.json").read_text())


def test_recorded_rows_say_where_and_when():
    (row,) = recorded("decode", "llama-3.1-8b")
    assert row.unit == "tokens/s" and row.machine in row.label and row.date in row.label and row.label in " ".join(str(row).split())


def test_a_row_that_is_not_recorded_fails_the_lesson():
    with pytest.raises(LessonError, match="There are"):
        recorded("decode", "no such model")


VERDICTS = [
    (100.0, 100.0, "exactly"),
    (95.0, 100.0, "within 10 %"),
    (200.0, 100.0, "2x too high"),
    (25.0, 100.0, "4x too low"),
    (-1.0, 2.0, "too low"),
    (None, 1.0, "not predicted"),
    ("memory", "memory", "right"),
    ("memory", "compute", "otherwise"),
]


@pytest.mark.parametrize(("guess", "actual", "words"), VERDICTS)
def test_a_prediction_is_held_against_what_came(guess, actual, words):
    prediction = Prediction(quantity="How many?")
    prediction.guesses["quantity"] = guess
    comparison = prediction.against(quantity=actual)
    assert words in repr(comparison) and words in comparison._repr_html_()


def test_a_measured_value_stands_beside_the_computed_one_and_is_the_one_that_counts():
    prediction = Prediction(ms="How long?", bytes="How much?")
    prediction.guesses["ms"] = 4.0
    page = prediction.against(ms=2.0, bytes=7.0, measured=dict(ms=4.1))._repr_html_()
    assert "<td>2</td><td>4.1</td><td>within 10 %</td>" in page and "<td>7</td><td></td><td>not predicted</td>" in page
    assert 'data-name="ms" data-actual="4.1"' in page and 'data-name="bytes" data-actual="7.0"' in page


def test_what_was_not_asked_cannot_be_compared():
    with pytest.raises(LessonError, match="bytes"):
        Prediction(bytes="How many?").against(flops=1.0)


def test_a_prediction_on_a_page_is_a_form_with_a_label_for_every_field():
    page = Prediction(bytes="How many <b>?", limit=("Which?", "memory", "arithmetic"))._repr_html_()
    assert page.startswith('<form class="prediction"') and page.count("<label") == 2 == page.count('role="alert"')
    assert 'for="predict-bytes">How many &lt;b&gt;?</label> <input id="predict-bytes" name="bytes"' in page
    assert "<option></option><option>memory</option><option>arithmetic</option>" in page


def test_a_notebook_asks_in_the_cell_until_the_input_is_an_answer(monkeypatch, capsys):
    from minllm.course import prediction

    typed = iter(["16 GB", "Cache", "Memory", "", "no idea", ""])
    monkeypatch.setattr(prediction, "in_notebook", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: next(typed))
    asked = Prediction(a="A?", b=("B?", "memory", "arithmetic"), c="C?", d="D?").ask()
    assert asked.guesses == dict(a=16e9, b="memory", c=None, d=None)
    assert "16G" in asked._repr_html_() and "form" not in asked._repr_html_()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("'Cache' is not memory or arithmetic.") and second.startswith("'no idea' is not a number, such as 16e9")


def test_a_notebook_in_which_every_question_was_skipped_shows_no_form(monkeypatch):
    from minllm.course import prediction

    monkeypatch.setattr(prediction, "in_notebook", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: "")
    page = Prediction(a="A?").ask()._repr_html_()
    assert "form" not in page and "<td>A?</td><td>?</td>" in page


def test_nobody_is_asked_where_nobody_can_answer(monkeypatch):
    from minllm.course import prediction

    def refuse(text):
        raise NotImplementedError

    assert Prediction(a="A?").ask().guesses == dict(a=None)  # no notebook
    monkeypatch.setattr(prediction, "in_notebook", lambda: True)
    monkeypatch.setattr("builtins.input", refuse)
    assert Prediction(a="A?").ask().guesses == dict(a=None)


@pytest.mark.parametrize("text", QUANTITIES)
def test_numbers_are_read_as_people_type_them(text):
    assert parse_quantity(text) == QUANTITIES[text]


def test_exercises_on_a_page_are_the_checkers_own():
    from minllm.course import show_exercises
    from minllm.course.exercises import EXERCISES

    lesson = EXERCISES[0].lesson
    markdown = show_exercises(lesson)._repr_markdown_()
    for exercise in EXERCISES:
        assert (exercise.name in markdown) == (exercise.lesson == lesson)
    assert literal(EXERCISES[0].task) in markdown and EXERCISES[0].rungs[-1].name in markdown


def test_a_task_is_shown_as_it_is_written():
    shown = literal("add x[row, k] * weight[column, k] to block_size; 10**12, `a*b` and f(g(x), 2) stay")
    assert shown == r"add `x[row, k]` \* `weight[column, k]` to `block_size`; 10\*\*12, `a*b` and `f(g(x), 2)` stay"


def test_what_a_lesson_imports_is_there_and_stays_what_it_is():
    import minllm.course

    for name in minllm.course.__all__:
        assert callable(getattr(minllm.course, name)) and callable(getattr(minllm.course, name))
