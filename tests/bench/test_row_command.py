"""Every recorded row names a command that exists, with options that the command line accepts."""

import json
from pathlib import Path

import pytest
import typer

from minllm.bench.kernel_cases import kernel_cases
from minllm.bench.row_command import REPEATED, command_of, commands_of
from minllm.cli.bench import bench_app

ROOT = Path(__file__).parents[2]
NAMES = "h200", "h200_ranks", "cache_traffic"
ROWS = [row for name in NAMES for row in json.loads((ROOT / f"docs/results/{name}.json").read_text("utf-8"))["rows"]]
BENCH = typer.main.get_command(bench_app)


def parsed(command: str):
    """The values that `minllm bench NAME ...` would run with; raises click's error for an unknown option or value."""
    name, *arguments = command.removeprefix("minllm bench ").split()
    return BENCH.commands[name].make_context(name, arguments).params


@pytest.mark.parametrize("command", commands_of(ROWS))
def test_a_command_is_accepted(command):
    if command.startswith("minllm bench"):
        assert parsed(command)
    else:
        script, option, part = command.removeprefix("python ").split()
        assert option == "--only" and 'choices=("copy", "cache", "splits", "length")' in (ROOT / script).read_text("utf-8")
        assert part in ("copy", "cache", "splits", "length")


def test_a_command_has_the_sizes_of_its_row():
    (row,) = [one for one in ROWS if one["benchmark"] == "decode step" and "1b" in one["case"]
              and "batch 64, context 192" in one["case"] and one["variant"] == "graph replay"]  # fmt: skip
    values = parsed(str(command_of(row)))
    assert (values["model"], values["batch"], values["context"]) == (["llama-3.2-1b"], [64], [192])


def test_one_command_measures_rows_of_repeated_options():
    rows = [one for one in ROWS if one["benchmark"] == "decode step" and "context 192" in one["case"]]
    (command,) = commands_of(rows)
    values = parsed(command)
    assert values["model"] == ["llama-3.2-1b", "llama-3.1-8b"] and values["batch"] == [1, 16, 64, 256]


@pytest.mark.parametrize("name", REPEATED)
def test_options_that_are_joined_may_be_repeated(name):
    options = {one.name.replace("_", "-"): one.multiple for one in BENCH.commands[name].params}
    assert all(options[option] for option in REPEATED[name])


def test_a_kernel_is_measured_with_its_own_stage():
    for case in kernel_cases():
        row = dict(benchmark=case.benchmark, case=case.case, variant=case.variant, peer=None)
        assert parsed(str(command_of(row)))["only"] == [case.stage], row


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ValueError, match="no command is known"):
        command_of(dict(benchmark="weather", case="", variant="", peer=None))
