"""A reader's report: measured without PyTorch, refused without a GPU, and made a line of the page of GPUs."""

import contextlib
import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minllm.bench import ceilings, report
from minllm.bench.record import Row
from minllm.cli.app import app
from minllm.errors import OutOfMemoryError
from minllm.machine import driver
from tests.runtime.h200 import H200

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    """tools/reader_report.py as a module."""
    spec = importlib.util.spec_from_file_location("reader_report_tool", ROOT / "tools" / "reader_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Compiled(contextlib.nullcontext):
    """Nothing is left to compile."""

    def __enter__(self):
        return self

    def wait(self):
        """Nothing to wait for."""


def steps(model, form, dtype, ceilings):
    """Made-up rows of a shape, of which the largest does not fit."""
    if model == "llama-3.1-8b" and not form:
        raise OutOfMemoryError("16 GB are needed, and 11 are free")
    case = f"{model} (random weights{f' in {form}' if form else ''})"
    found = [Row("decode step", f"{case}, batch {batch}, context 1024", "graph replay", 1000.0 * batch, "µs") for batch in report.BATCHES]
    return found + [] if form else [*found, Row("whole prefill", f"{case}, 2048 tokens", f"{dtype}, graph replay", 7.25, "ms")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of a report on a GPU that is not there."""
    case = "llama-3.2-1b (random weights), mixed-prompts, 256 requests, all at once"
    path = tmp_path_factory.mktemp("report") / "report.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "is_available", lambda: True)
        patch.setattr(report, "current_device", lambda: H200)
        patch.setattr(report, "compile_ahead", lambda *_: Compiled())
        patch.setattr(ceilings, "copy_tb_s", lambda: 4.2471)
        patch.setattr(driver, "release", lambda: "580.159.04")
        patch.setattr(report, "step_rows", steps)
        patch.setattr(report, "serving_rows", lambda: [Row("serving throughput", case, "default", 51_234.0, "tokens/s")])
        done = CliRunner().invoke(app, ["bench", "report", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "llama-3.1-8b is left out: 16 GB are needed" in done.output and "decode step, llama-3.2-1b" in done.output
    return path.read_text()


def test_a_report_becomes_a_line_of_the_page(tool, measured):
    commit = json.loads(measured)["commit"][:8]
    shown = tool.line(measured.replace(json.loads(measured)["date"], "2026-01-02"))
    expected = f"| NVIDIA H200 | 580.159.04, 2026-01-02, {commit} | 4.25 | 1 · 64 | – · – | 1 · 64 | 7.25 · – | 51,234 |"
    assert shown == expected
    installed = json.loads(measured) | dict(commit="", packages={"minllm": "0.1.0"})
    assert ", minllm 0.1.0 |" in tool.line(json.dumps(installed))
    assert ", minllm without git |" in tool.line(json.dumps(installed | dict(packages={})))
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    once = tool.added(page, shown)
    assert once.count("\n") == page.count("\n") + 1 and tool.added(once, shown) == once
    head = once.partition(tool.BEGIN)[2].splitlines()[1]
    assert head.count("|") == shown.count("|")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda one: one | dict(device="a | b"), "'a | b' is no name"),
        (lambda one: one | dict(device=None), "None is no name"),
        (lambda one: {name: value for name, value in one.items() if name != "driver"}, "KeyError: 'driver'"),
        (lambda one: one | dict(ceilings={"copy_tb_s": None}), "None is no positive number"),
        (lambda one: one | dict(rows=[one["rows"][0] | dict(value=float("nan"))]), "nan is no positive number"),
        (lambda one: [one], "TypeError"),
    ],
)
def test_another_file_is_refused_by_name(tool, measured, change, named):
    with pytest.raises(SystemExit, match="no file of `minllm bench report`") as refused:
        tool.line(json.dumps(change(json.loads(measured))))
    assert named in str(refused.value)
    with pytest.raises(SystemExit, match="JSONDecodeError"):
        tool.line("not JSON")


def test_a_machine_without_a_gpu_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "is_available", lambda: False)
    done = CliRunner().invoke(app, ["bench", "report", "--json", str(tmp_path / "report.json")])
    assert done.exit_code == 1 and "compute capability 7.5 or newer" in done.stderr and "minllm doctor" in done.stderr
    assert not (tmp_path / "report.json").exists()
