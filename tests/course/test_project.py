"""The final project: the solutions together get a certificate; wrong, missing and borrowed parts do not, and are told why."""

import hashlib
import json
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

from minllm.cli.app import app
from minllm.course.check_process import CheckedFile
from minllm.course.checks.evidence import restored
from minllm.course.exercise_markers import fill, solution
from minllm.course.project import check
from minllm.course.project.certificate import certificate
from minllm.course.project.check import check_project, disagreement
from minllm.course.project.own_engine import PROMPTS, Run, run
from minllm.course.project.parts import APPEND, MERGE, PARTS, SAMPLE, SCHEDULE, SPLIT, files_of
from minllm.errors import ExerciseError

pytestmark = pytest.mark.results_only


@pytest.fixture(scope="module")
def expected():
    """The package's NumPy engine."""
    return run()


@pytest.fixture
def folder(tmp_path):
    """The five solutions."""
    for part in PARTS:
        part.file(tmp_path).write_text(part.exercise.source)
    return tmp_path


@pytest.fixture
def passing(monkeypatch):
    """Each part passes alone: test_exercises.py checks the ladders."""
    monkeypatch.setattr(check, "check_in_a_process", lambda path, name: CheckedFile(True, ""))


def change(folder, part, old, new):
    """Replace `old` by `new` in a part's lines."""
    text = part.file(folder).read_text()
    lines = solution(text, part.exercise_name)
    assert old in lines
    part.file(folder).write_text(fill(text, part.exercise_name, lines.replace(old, new)))


class Tags(HTMLParser):
    """Counts elements, and keeps what they would load."""

    def __init__(self):
        super().__init__()
        self.names, self.loads = [], []

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href")]


def test_the_five_solutions_get_a_certificate(folder, passing, expected):
    report = check_project(folder)
    assert report.passed, report.text
    page = report.certificate.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.loads and "script" not in tags.names and date.today().isoformat() in page
    for part in PARTS:
        lines = solution(part.exercise.source, part.exercise_name)
        assert hashlib.sha256(lines.encode()).hexdigest() in page and part.exercise_name in page
    assert "a + b" in page and all(repr(prompt + text) in report.text for prompt, text in zip(PROMPTS, expected.texts, strict=True))


def test_a_part_that_fails_alone_is_reported_and_no_certificate_stays(folder):
    (folder / check.CERTIFICATE).write_text("of an earlier check")
    change(folder, SCHEDULE, "if budget else", "if False else")
    report = check_project(folder)
    assert not report.passed and "FAILED" in report.text and "scheduling.prefill" in report.text
    assert not (folder / check.CERTIFICATE).exists()


def test_parts_that_do_not_work_together_are_refused(folder, passing):
    change(folder, APPEND, "if slot < 0:", "if slot < 0 or token == cuda.gridDim.x - 1:")
    report = check_project(folder)
    assert not report.passed and "expected tokens" in report.text and "they part at token 1" in report.text
    assert "attention.split_kv" in report.text.partition("Likely cause")[2], report.text
    assert not (folder / check.CERTIFICATE).exists()


CHEATS = {
    "a certificate of its own": (
        SAMPLE, "\n\nfrom pathlib import Path\nPath(__file__).with_name('certificate.html').write_text('mine')\nraise ValueError('no')\n",
        "ValueError: no",
    ),
    "the package's launcher": (
        SAMPLE, "\n\ndef argmax(*given):\n    from minllm.kernels.sampling.argmax import argmax as own\n    own(*given)\n",
        "calls the package's own argmax",
    ),
    "the package's method": (
        SCHEDULE, "\n\nfrom minllm.engine.scheduling import scheduler as s\n\ndef prefill(self, *given):\n"
        "    s.Scheduler.prefill(self, *given)\nScheduler.prefill = prefill\n", "calls the package's own Scheduler",
    ),
    "the end of the process": (SAMPLE, "\n\nimport os\nos._exit(0)\n", "ended with exit code 0 before it could report"),
    "an error": (SAMPLE, "\n\ndef argmax(*given):\n    raise ValueError('no')\n", "ValueError: no"),
}  # fmt: skip


@pytest.mark.parametrize("part, lines, says", CHEATS.values(), ids=CHEATS)
def test_an_engine_that_borrows_or_ends_is_refused(part, lines, says, folder, passing):
    path = part.file(folder)
    path.write_text(path.read_text() + lines)
    with pytest.raises(ExerciseError) as raised:
        check_project(folder)
    assert says in str(raised.value) and not (folder / check.CERTIFICATE).exists()


def test_a_file_that_changes_while_it_is_checked_gets_none(folder, passing, expected, monkeypatch):
    def engine(folder):
        SAMPLE.file(folder).write_text("# another file\n")
        return Run(expected.tokens, [], expected.keys, dict.fromkeys([part.exercise_name for part in PARTS], 1))

    monkeypatch.setattr(check, "engine_in_a_process", engine)
    monkeypatch.setattr(check, "run", lambda: expected)
    with pytest.raises(ExerciseError, match="sampling_argmax.py changed during the check"):
        check_project(folder)
    assert not (folder / check.CERTIFICATE).exists()


def test_files_that_are_missing_are_named(folder):
    MERGE.file(folder).unlink()
    with pytest.raises(ExerciseError, match="has no attention_split_merge.py: minllm exercise project --out"):
        files_of(folder)
    result = CliRunner().invoke(app, ["check", "project", str(folder)])
    assert result.exit_code == 1 and "attention_split_merge.py" in result.output


def test_the_command_writes_five_skeletons(tmp_path):
    result = CliRunner().invoke(app, ["exercise", "project", "--out", str(tmp_path / "engine")])
    assert result.exit_code == 0 and "minllm check project" in result.output
    assert all("FILL IN" in path.read_text() for path in files_of(tmp_path / "engine").values())


def test_what_a_run_gets_wrong_is_said(expected):
    right = Run(expected.tokens, [], expected.keys, dict.fromkeys([part.exercise_name for part in PARTS], 1))
    assert disagreement(right, expected) is None
    assert "never called kv.append" in disagreement(replace(right, calls={**right.calls, APPEND.exercise_name: 0}), expected)
    changed = [list(one) for one in right.tokens]
    changed[1][2] += 1
    assert "Request 1" in (said := disagreement(replace(right, tokens=changed), expected)) and "part at token 2" in said
    assert SPLIT.exercise_name in said
    changed[1][0] += 1
    assert SAMPLE.exercise_name in disagreement(replace(right, tokens=changed), expected)
    assert "2 of 3 requests" in disagreement(replace(right, tokens=right.tokens[:2]), expected)
    keys = right.keys.copy()
    keys[0, 0, 0, 0] += 1
    assert "kv.append" in disagreement(replace(right, keys=keys), expected)


def test_a_report_that_cannot_be_read_is_none(folder, monkeypatch):
    def wrote(module, report, folder):
        Path(report).write_text(json.dumps(dict(tokens="yes", keys=None, calls={})), encoding="utf-8")
        return MagicMock()

    monkeypatch.setattr(check, "process_of", wrote)
    with pytest.raises(ExerciseError, match="left no report that can be read"):
        check.engine_in_a_process(folder)


def test_what_was_printed_is_text_on_the_page(folder, expected):
    """Not elements: a model may print anything."""
    odd = replace(expected, texts=["<script>alert(1)</script>"] * len(PROMPTS))
    page = certificate(files_of(folder), odd, dict.fromkeys([part.exercise_name for part in PARTS], 1), date(2026, 1, 2))
    assert "<script>" not in page and "&lt;script&gt;" in page and "2026-01-02" in page
    assert np.isfinite(restored(check.plain(expected.keys))).all()
