"""Exercises: solutions pass, skeletons are the package's files, and plausible mistakes fail where, and with the words, they should."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from minllm.course import checks
from minllm.course.check_process import first_doubt
from minllm.course.checks import ladder
from minllm.course.checks.doors import check, check_file
from minllm.course.checks.evidence import collecting, plain
from minllm.course.checks.ladder import climb
from minllm.course.checks.learner import entry_of, run_source
from minllm.course.exercise_files import notebook, skeleton, solved, write
from minllm.course.exercise_markers import blank, fill, holder, parts, region, regions, solution
from minllm.course.exercises import EXERCISES, NAMES, find, select
from minllm.errors import ExerciseError
from tests.course.beginners_mistakes import BEGINNERS
from tests.course.mutations import MUTATIONS


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Nothing here is timed, on whatever machine it runs."""
    monkeypatch.setattr(ladder, "gpu_available", lambda: False)


def test_every_exercise_of_the_checks_is_listed_once():
    modules = [import_module(f"minllm.course.checks.{one.name}") for one in iter_modules(checks.__path__)]
    names = [exercise.name for module in modules for exercise in getattr(module, "EXERCISES", ())]
    assert sorted(names) == sorted(NAMES) and {exercise.name for exercise in EXERCISES} == set(NAMES)


every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)


def functions_of(text):
    """{name: syntax tree without docstrings} of all functions of a text."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return {node.name: ast.dump(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@every_exercise
def test_the_skeleton_with_the_solution_is_the_packages_function(exercise):
    """But for the overlap of launches, which is taken out of the package's text here."""
    text, lines = skeleton(exercise), solution(exercise.source, exercise.name)
    assert fill(text, exercise.name, lines) == solved(exercise)
    package = re.sub(r"\(dependent_launch=True\)|, dependent_launch=True|\n *wait_for_predecessors\(\)(?=\s)", "", exercise.source)
    written = functions_of(solved(exercise))
    assert written and written.items() <= functions_of(package).items()
    assert not [name for name in regions(exercise.source) if solution(exercise.source, name) in text] and "FILL IN" in text
    assert "wait_for_predecessors" not in text and "dependent_launch" not in text
    compile(text, exercise.file_name, "exec")


LONG_HOLE = {"all_reduce.one_shot": 10}
LONG = {  # kernels whose function is long, and the lines of their files
    "attention.flash_attention_1": 125, "attention.split_merge": 87, "attention.split_kv": 79, "matmul.tiled": 71, "experts.sort": 45,
    "normalization.rms_norm": 51, "sampling.penalties": 40, "attention.weighted_values": 40, "all_reduce.one_shot": 36,
}  # fmt: skip


@every_exercise
def test_a_readers_file_fits_a_screen_and_its_hole_is_small(exercise):
    assert len(skeleton(exercise).splitlines()) <= LONG.get(exercise.name, 32)
    assert len(solution(exercise.source, exercise.name).splitlines()) <= LONG_HOLE.get(exercise.name, 8)


def test_the_first_exercise_is_the_smallest():
    first = next(exercise for exercise in EXERCISES if exercise.lesson == 2)
    assert first.name == "activation.relu"
    assert len(skeleton(first).splitlines()) <= 15 and len(solution(first.source, first.name).splitlines()) <= 3


LESSONS = sorted((Path(__file__).parents[2] / "lessons").glob("[0-9][0-9]*.py"))
GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^### (.+?) · ", GLOSSARY, re.MULTILINE)


def says(text, term):
    """Whether a text has a term of the glossary, also in the plural."""
    return re.search(rf"(?<![\w.]){re.escape(term)}s?(?![\w(])", text, re.IGNORECASE) is not None


@every_exercise
def test_a_readers_file_has_no_word_of_a_later_lesson(exercise):
    read = "".join(path.read_text(encoding="utf-8") for path in LESSONS if int(path.name[:2]) <= exercise.lesson)
    text = re.sub(r"^(from|import) .*\n", "", skeleton(exercise), flags=re.MULTILINE)
    assert not [term for term in TERMS if says(text, term) and not says(read, term)]


@pytest.mark.parametrize("name", ["attention.scores", "attention.weighted_values"])
def test_a_file_without_its_siblings_solution_passes(name, tmp_path):
    exercise = find(name)
    path = tmp_path / exercise.file_name
    path.write_text(fill(skeleton(exercise), name, solution(exercise.source, name)))
    report = check_file(path)
    assert report.passed, f"\n{report}"
    assert f"--variant attention={path}" in str(report) and "FILE.py" not in str(report)


@every_exercise
def test_the_notebook_holds_the_skeleton(exercise):
    cells = notebook(exercise)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "".join(code[:-1]) in (skeleton(exercise), skeleton(exercise).rstrip("\n") + "\n")
    assert f'check("{exercise.name}", {holder(exercise.source, exercise.name)})' in code[-1]
    assert len({cell["id"] for cell in cells}) == len(cells)


FIRST_CHECKS = {}  # {name of an exercise: what the first check of its solution found}


def checked_solution(exercise, path):
    """(report, results) of the check of an exercise's solution, in a file at `path`."""
    path.write_text(solved(exercise))
    with collecting() as found:
        report = check_file(path, exercise.name)
    return report, found


def first_check(exercise, folder):
    """What the first check of an exercise's solution found, which tests share; its file is in `folder`."""
    if exercise.name not in FIRST_CHECKS:
        FIRST_CHECKS[exercise.name] = checked_solution(exercise, folder / exercise.file_name)
    return FIRST_CHECKS[exercise.name]


@every_exercise
def test_the_solution_passes_and_the_skeleton_does_not(exercise, tmp_path):
    path = tmp_path / exercise.file_name
    report, notes = first_check(exercise, tmp_path)
    assert report.passed and len(notes) >= 3, f"\n{report}"
    path.write_text(skeleton(exercise))
    report = check_file(path)
    assert not report.passed and "not filled in yet" in report.failed.message and str(path) in report.failed.message, f"\n{report}"


@pytest.mark.covering("exercise.stage", "exercise.lesson")
@every_exercise
def test_two_runs_of_a_solution_note_the_same_results(exercise, tmp_path):
    """The process that runs a file notes its results; the parent, which runs the solution, judges them."""
    (_, notes), (_, ours) = first_check(exercise, tmp_path), checked_solution(exercise, tmp_path / exercise.file_name)
    reported = json.loads(json.dumps([(one.name, plain(one.got)) for one in notes]))
    assert first_doubt(reported, ours) is None
    assert first_doubt(reported[:-1], ours) == ours[-1].name


@pytest.mark.covering("mutation.exercise + mutation.rung")
@pytest.mark.parametrize("mutation", [*MUTATIONS, *BEGINNERS], ids=str)
def test_a_plausible_mistake_is_named(mutation, tmp_path):
    exercise = find(mutation.exercise)
    lines = solution(exercise.source, exercise.name)
    assert mutation.old in lines
    path = tmp_path / exercise.file_name
    path.write_text(fill(solved(exercise), exercise.name, lines.replace(mutation.old, mutation.new)))
    report = check_file(path)
    assert report.failed is not None, f"the mistake passed\n{report}"
    assert report.failed.rung.name == mutation.rung and mutation.says in report.failed.message, f"\n{report}"


def test_every_exercise_has_two_mistakes_and_every_marker_an_exercise():
    for exercise in EXERCISES:
        assert sum(mutation.exercise == exercise.name for mutation in MUTATIONS) >= 2, exercise.name
    for path in {exercise.path for exercise in EXERCISES}:
        marked = set(regions(path.read_text()))
        assert marked == {exercise.name for exercise in EXERCISES if exercise.path == path}


def test_files_are_written_once(tmp_path):
    chosen = select("5")
    paths = write(chosen, tmp_path / "work")
    assert sorted(path.name for path in paths) == sorted(
        [name for one in chosen for name in (one.file_name, one.file_name[:-3] + ".ipynb")] + ["test_exercises.py"]
    )
    assert json.loads((tmp_path / "work" / "matmul_naive.ipynb").read_text())["nbformat"] == 4
    mine = tmp_path / "work" / "matmul_naive.py"
    mine.write_text("my work")
    with pytest.raises(ExerciseError, match="matmul_naive.py.*--force"):
        write([find("matmul.naive")], tmp_path / "work")
    assert mine.read_text() == "my work"
    write(chosen, tmp_path / "work", force=True)
    assert "FILL IN" in mine.read_text()


def test_what_a_cell_of_a_notebook_checks(capsys):
    exercise = find("matmul.naive")
    before, function, after = parts(exercise.source, exercise.name)
    cell = {}
    exec(before + function, cell)
    assert check(cell["matmul_naive_kernel"]).passed
    assert "Passed: 7 of 8 cases, 1 skipped." in capsys.readouterr().out
    exec(after, cell)
    assert check("matmul.naive", cell["matmul_naive"]).passed
    exec(function.replace("range(x.shape[1])", "range(0)"), cell)
    assert check("matmul.naive", cell["matmul_naive_kernel"]).failed.rung.name == "one element by hand"
    with pytest.raises(ExerciseError, match="more than one|no exercise"):
        check(print)
    with pytest.raises(ExerciseError, match="give the kernel too"):
        check("matmul.naive")
    assert select("05a") == select("5b") == select("5")
    with pytest.raises(ExerciseError, match="there is no exercise 'matmul.magic'"):
        check("matmul.magic", print)


def broken(old, new):
    """matmul.naive with one part replaced."""
    text = find("matmul.naive").source
    assert old in text
    return text.replace(old, new)


LOOP = "for k in range(x.shape[1]):"
LAUNCHER = "def matmul_naive(x, weight, out, bias=None, stream=None)"
WRONG_FILES = {
    "syntax": (broken("total = float32(0.0)", "total = float32(0.0"), "Python cannot read this"),
    "name": (broken("def matmul_naive_kernel(", "def my_kernel("), "has no `matmul_naive_kernel` any more"),
    "signature": (broken(LAUNCHER, "def matmul_naive(x, weight)"), "keep their parameters"),
    "import": (broken("import cuda, float32", "import cuda, float31"), "ImportError: cannot import name 'float31'"),
    "undefined": (broken("total = float32(0.0)\n", "total = zero\n"), "the name 'zero' is not defined: neither in the kernel"),
    "endless": (broken(LOOP, "k = 0\n        while k < x.shape[1]:"), "still running"),
    "raises": (broken(LOOP, "raise ValueError('no')\n        " + LOOP), "ValueError: no ("),
    "barrier": (broken(LOOP, "if column < out.shape[1] - 1:\n            cuda.syncthreads()\n        " + LOOP), "barrier"),
}


@pytest.mark.parametrize("text, says", WRONG_FILES.values(), ids=WRONG_FILES)
def test_what_a_readers_file_can_do_wrong_is_said(text, says, tmp_path):
    path = tmp_path / "matmul_naive.py"
    path.write_text(text)
    report = check_file(path, seconds=0.5)
    assert report.failed is not None and says in report.failed.message and str(path) in report.failed.message, f"\n{report}"


def test_a_file_that_is_no_exercise_is_refused(tmp_path):
    path = tmp_path / "other.py"
    with pytest.raises(ExerciseError, match="cannot be read"):
        check_file(path)
    path.write_text("x = 1\n")
    with pytest.raises(ExerciseError, match="does not say which exercise"):
        check_file(path)
    path.write_text("# exercise: matmul.naive\n")
    with pytest.raises(ExerciseError, match="does not end"):
        check_file(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ExerciseError, match="UTF-8"):
        check_file(path)


def test_a_rung_that_needs_a_gpu_is_skipped_with_a_reason():
    from dataclasses import replace

    from minllm.course.exercise import Rung

    exercise = replace(find("matmul.naive"), rungs=(Rung("speed", "how fast it is", None, needs_gpu=True),))
    report = climb(exercise, lambda: entry_of(exercise, run_source(exercise.source, exercise.path, "copy")))
    assert report.passed and "needs a GPU" in str(report)


@pytest.mark.parametrize(
    "text, says",
    [
        ("# exercise: a.b\n", "does not end"),
        ("# end exercise\n", "that has not begun"),
        ("# exercise: a.b\n# exercise: c.d\n# end exercise\n", "inside exercise a.b"),
        ("# exercise: a.b\n# end exercise\n# exercise: a.b\n# end exercise\n", "a second exercise"),
    ],
)
def test_markers_that_do_not_pair_are_refused(text, says):
    with pytest.raises(ExerciseError, match=says):
        regions(text)


def test_regions_and_what_holds_them():
    text = "import x\n\n\n@x\ndef f():\n    a = 1\n    # exercise: a.b\n    b = 2\n\n    # why\n    c = 3\n    # end exercise\n\n\ny = 1\n"
    assert solution(text, "a.b") == "    b = 2\n\n    # why\n    c = 3\n"
    assert holder(text, "a.b") == "f" and "".join(parts(text, "a.b")) == text
    assert parts(text, "a.b")[1].startswith("@x\ndef f") and parts(text, "a.b")[1].endswith("# end exercise\n")
    assert "# FILL IN: about 2 lines. Do it." in blank(text, "a.b", "Do it.")
    with pytest.raises(ExerciseError, match="keep both"):
        region(text, "c.d")
