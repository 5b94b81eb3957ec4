"""`minllm generate --nano`."""

import pytest
from typer.testing import CliRunner

from minllm.cli import app as cli
from minllm.nano import NanoLLM, SamplingParams


def run(*arguments):
    """Invoke the command in this process."""
    return CliRunner().invoke(cli.app, ["generate", *arguments, "--nano", "--device", "cpu"])


def test_it_prints_nanos_text():
    expected = NanoLLM().generate(["import"], SamplingParams(temperature=0.7, seed=3, max_tokens=6))[0].text
    result = run("import", "--temperature", "0.7", "--seed", "3", "--max-tokens", "6")
    assert (result.exit_code, result.stdout.rstrip("\n")) == (0, expected.rstrip("\n"))


@pytest.mark.parametrize("option, message", [(("--min-p", "0.1"), "--min-p"), (("--n", "2"), "one text"), (("--json", "x"), "one text")])
def test_options_that_it_lacks_are_named(option, message):
    result = run("import", *option)
    assert result.exit_code == 2 and "--nano" in result.output and message in result.output
