"""`minllm exercise` and `minllm check`, as a reader runs them, and pytest in the folder that they get."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minllm.cli.app import app
from minllm.course.exercises import EXERCISES, find


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_reader_does_an_exercise(tmp_path):
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
    passed = run("check", "matmul.naive", path)
    assert passed.exit_code == 0 and "Passed" in passed.output

    assert run("exercise", "normalization.rms_norm", "--out", tmp_path).exit_code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)
    assert "1 failed, 1 passed" in tested.stdout and "rms_norm is not filled in yet" in tested.stdout, tested.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["exercise", "99", "--out", "x"], "lesson 99 has no exercises"),
        (["exercise", "matmul.naive"], "--out FOLDER"),
        (["exercise", "nothing"], "there is no exercise 'nothing'"),
        (["check", "missing.py"], "cannot be read"),
    ],
)
def test_what_is_not_there_is_said(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 1 and says in result.output and len(result.output.splitlines()) == 1
