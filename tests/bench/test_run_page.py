"""The pages whose programs are run: what they show is what the programs print and draw. And the tool that runs them."""

import importlib.util
from pathlib import Path

import pytest

from minllm.machine.devices import missing_compilers
from minllm.sim import detecting

ROOT = Path(__file__).parents[2]
PAGE = 'Before.\n\n```python title="add.py"\nprint(1 + 1)\n```\n\n```text\n{}```\n\nAfter.\n'


@pytest.fixture
def run_page(forked_python):
    """The tool's `main`, under the detectors that a reader has: none but those that a program asks for."""
    spec = importlib.util.spec_from_file_location("run_page", ROOT / "tools" / "run_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with detecting(False):
        yield lambda *arguments: module.main([str(argument) for argument in arguments])


@pytest.mark.skipif(bool(missing_compilers()), reason="the page compiles kernels, and the CUDA toolkit's compiler is not installed")
@pytest.mark.parametrize("page", ["simulator.md", "race.md"])
def test_a_page_shows_what_its_programs_print_and_draw(page, run_page, capsys):
    assert run_page(ROOT / "docs" / page, "--check") == 0, capsys.readouterr().out


def test_a_stale_output_is_found_and_mended(run_page, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format("3\n"))
    assert run_page(page, "--check") == 1
    assert str(page) in capsys.readouterr().out
    assert run_page(page) == 0
    assert page.read_text() == PAGE.format("2\n")
    assert run_page(page, "--check") == 0


def test_a_stale_picture_is_found_and_mended(run_page, tmp_path):
    page, picture = tmp_path / "page.md", tmp_path / "assets" / "page" / "a.svg"
    page.write_text(PAGE.replace("print(1 + 1)", "open('a.svg', 'w').write('<svg/>')").format(""))
    assert run_page(page, "--check") == 1
    assert run_page(page) == 0
    assert picture.read_text() == "<svg/>"
    assert run_page(page, "--check") == 0


def test_an_error_of_ours_is_the_last_line_of_an_output(run_page, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("print(1 + 1)", "import minllm\nminllm.SamplingParams(temperature=-1)").format(""))
    run_page(page)
    assert "```text\nminllm.errors.InvalidRequestError: temperature" in page.read_text()
