"""`minllm exercise` and `minllm check`, as a reader runs them, and pytest in the folder that they get."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minllm.cli.app import app
from minllm.course import child
from minllm.course.check_process import judged
from minllm.course.exercises import EXERCISES, find
from minllm.errors import ExerciseError

pytestmark = pytest.mark.results_only  # the solutions, which test_exercises.py runs under detectors


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_reader_does_an_exercise(tmp_path, monkeypatch, forked_python):
    listed = run("exercise")
    assert listed.exit_code == 0 and all(exercise.name in listed.output for exercise in EXERCISES)

    path = tmp_path / "matmul_naive.py"
    written = run("exercise", "matmul.naive", "--out", tmp_path)
    assert written.exit_code == 0 and str(path) in written.output
    refused = run("exercise", "5", "--out", tmp_path)
    assert refused.exit_code == 1 and "--force" in refused.output

    failed = run("check", path)
    assert failed.exit_code == 1 and "FAILED" in failed.output and "not reached" in failed.output
    path.write_text(find("matmul.naive").source)
    for forks in (child.FORKS, False):
        monkeypatch.setattr(child, "FORKS", forks)
        passed = run("check", "matmul.naive", path)
        assert passed.exit_code == 0 and "Passed" in passed.output

    assert run("exercise", "normalization.rms_norm", "--out", tmp_path).exit_code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)
    assert "1 failed, 1 passed" in tested.stdout and "rms_norm is not filled in yet" in tested.stdout, tested.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["exercise", "99", "--out", "x"], "lesson 99 has no exercises"),
        (["exercise", "matmul.naive"], "--out FOLDER"),
        (["exercise", "5a"], "minllm exercise 5a --out FOLDER"),
        (["exercise", "nothing"], "there is no exercise 'nothing'; minllm exercise lists all"),
        (["exercise", "relu"], "did you mean activation.relu?"),
        (["check", "missing.py"], "cannot be read"),
        (["check", "."], "is a directory: name a file in it, or run pytest there"),
    ],
)
def test_what_is_not_there_is_said(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 1 and says in result.output and len(result.output.splitlines()) == 1


SOLVED = find("matmul.naive").source
EXITS = {
    "at import": "import sys\nsys.exit(0)\n",
    "at import, by an exception": "raise SystemExit\n",
    "at import, at once": "import os\nos._exit(0)\n",
    "at import, by a signal": "import os\nos.kill(os.getpid(), 9)\n",
    "an exception of its own": "class Stop(BaseException): pass\nraise Stop\n",
}


@pytest.mark.parametrize("lines", EXITS.values(), ids=EXITS.keys())
def test_a_file_that_exits_has_not_passed(lines, tmp_path):
    path = tmp_path / "matmul_naive.py"
    path.write_text(f"{SOLVED}\n{lines}")
    result = run("check", path)
    assert result.exit_code == 1 and "Passed" not in result.output
    assert "ends the program" in result.output or "has not passed" in result.output or "Stop" in result.output


EXITING_CALLS = [
    ("sys.exit(0)", "ends the program"),
    ("os._exit(0)", "has not passed"),
    ("__import__('os')._exit(0)", "numba-cuda does not know __import__"),
]


@pytest.mark.parametrize("call, says", EXITING_CALLS)
def test_a_kernel_that_exits_has_not_passed(call, says, tmp_path):
    path = tmp_path / "matmul_naive.py"
    path.write_text("import os\nimport sys\n" + SOLVED.replace("# exercise: matmul.naive", f"# exercise: matmul.naive\n    {call}"))
    result = run("check", path)
    assert result.exit_code == 1 and says in " ".join(result.output.split())


FORGED = """
import json, sys
forged = dict(passed=True, text="Passed: 8 of 8 cases.", results=RESULTS)
"""
WRITE = "open(sys.argv[1], 'w').write(json.dumps(forged))\n"
# Lines that make a wrong kernel's check come to a report of success, each in another way.
FORGERIES = {
    "the report is written at import, and the process ended": FORGED + WRITE + "import os\nos._exit(0)\n",
    "the report is overwritten at exit": FORGED + f"import atexit\natexit.register(lambda: {WRITE.strip()})\n",
    "another process writes the report": FORGED + f"import os\nif os.fork() == 0:\n    {WRITE}    os._exit(0)\nos.wait()\nos._exit(0)\n",
    "a report is called passed": "from minllm.course.checks.ladder import Report\nReport.passed = True\n",
    "rungs are not run": "from minllm.course.checks import ladder\nladder.tried = lambda rung, *rest: ladder.Result(rung, 'passed')\n",
    "nothing is compared": "import sys\nfor module in list(sys.modules.values()):\n"
    "    if getattr(module, '__name__', '').startswith('minllm.course.checks') and hasattr(module, 'expect'):\n"
    "        module.expect = lambda *given, **options: None\n",
    "no element ever differs": "from minllm.course.checks import mismatch\nimport numpy as np\n"
    "mismatch.differing = lambda got, *rest: np.zeros(got.shape, bool)\n",
    "json writes what it is told to": "import json\nreal = json.dumps\n"
    "json.dumps = lambda values, *rest: real(dict(values, passed=True, text='Passed'))\n",
}


ODD_ARRAY = {"dtype": "object", "shape": [1], "bytes": ""}


@pytest.mark.parametrize("results", [[], None, [["out", ODD_ARRAY]] * 99, [["out", ""]] * 99], ids=["none", "null", "odd", "text"])
def test_a_forged_report_is_no_pass_whatever_results_it_names(results, tmp_path):
    """The parent reads it, whatever process wrote it."""
    report = tmp_path / "report.json"
    report.write_text(json.dumps(dict(passed=True, text="Passed: 8 of 8 cases.", results=results)))
    with pytest.raises(ExerciseError, match="missing or wrong"):
        judged(report, tmp_path / "matmul_naive.py", find("matmul.naive"))


@pytest.mark.parametrize("lines", FORGERIES.values(), ids=FORGERIES)
def test_a_file_that_forges_its_pass_has_not_passed(lines, tmp_path):
    not_passed(lines.replace("RESULTS", "[]"), tmp_path)


def not_passed(lines, tmp_path):
    """The output of the check of a wrong kernel with these lines."""
    path = tmp_path / "matmul_naive.py"
    wrong = SOLVED.replace("total += ", "total -= ")
    assert wrong != SOLVED
    path.write_text(f"{wrong}\n{lines}")
    result = run("check", path)
    assert result.exit_code == 1
    return result.output


@pytest.mark.usefixtures("forked_python")
def test_a_file_prints_and_debugs_as_any_program_does(tmp_path):
    exercise = find("costs.floor_ms")
    path = tmp_path / exercise.file_name
    path.write_text(f"{exercise.source}\nprint('from the file')\nbreakpoint()\n")
    command = [sys.executable, "-m", "minllm", "check", str(path)]
    done = subprocess.run(command, input="p 6 * 7\ncontinue\n", capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("from the file") < done.stdout.index("42") < done.stdout.index("Passed")


def test_a_fifo_is_no_exercise(tmp_path):
    os.mkfifo(tmp_path / "fifo.py")
    result = run("check", tmp_path / "fifo.py")
    assert result.exit_code == 1 and "FIFO" in result.output


@pytest.mark.usefixtures("forked_python")
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_a_terminal_shows_which_case_runs(tmp_path):
    """On standard error, and erased before the report; a pipe gets the report alone."""
    exercise = find("costs.floor_ms")
    command = [sys.executable, "-m", "minllm", "check", exercise.name, str(exercise.path)]
    ours, theirs = os.openpty()
    plain = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=100)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert plain.returncode == 0 and plain.stdout.startswith(exercise.name)
    count = len(exercise.rungs)
    assert [f"case {number} of {count}: {rung.name}"[:70] in shown for number, rung in enumerate(exercise.rungs, start=1)] == [True] * count
    assert shown.endswith(" " * 79 + "\r")
