"""`minllm bench ranks` on a CPU: its rows are of every batch, prompt and list on every split, and plan's floors fall with the ranks."""

import json

import pytest
from typer.testing import CliRunner

from minllm.bench import ranks
from minllm.bench.kernel_keys import key_of
from minllm.bench.ranks import Planned, Split, Work
from minllm.bench.row_command import command_of
from minllm.cli.app import app
from minllm.errors import InvalidOptionError
from minllm.models.shapes import named_config
from tests.engine.models import model_directory


def test_every_split_is_measured(tmp_path, forked_python, monkeypatch):
    monkeypatch.setattr(ranks, "STEPS", 24)
    record = tmp_path / "record.json"
    command = ["bench", "ranks", "--model", str(model_directory("llama3") / "config.json"), "--device", "cpu", "--batch", "3"]
    result = CliRunner().invoke(app, [*command, "--context", "70", "--prompt", "20", "--json", str(record)])
    assert result.exit_code == 0, result.output
    rows = json.loads(record.read_text())["rows"]
    assert [(row["variant"], row["case"].split(", ", 1)[1]) for row in rows] == [
        (split, case) for split in ("1 tensor rank", "2 tensor ranks") for case in ("batch 3, context 70", "prompt of 20")
    ]
    assert all(row["value"] > 0 for row in rows)


def test_decode_attention_of_ranks_that_share_contexts(tmp_path):
    record = tmp_path / "record.json"
    command = ["bench", "ranks", "--context-parallel", "2", "--device", "cpu", "--context", "70", "--batch", "1", "--batch", "2"]
    result = CliRunner().invoke(app, [*command, "--json", str(record)])
    assert result.exit_code == 0, result.output
    rows = json.loads(record.read_text())["rows"]
    assert [(row["variant"], row["case"].split("batch ")[1]) for row in rows] == [
        (ranks, case) for ranks in ("1 rank", "2 ranks") for case in ("1, context 70", "2, context 70")
    ]
    assert str(command_of(rows[2])) == "minllm bench ranks --context-parallel 2 --batch 1 --context 70"
    assert key_of("shared contexts", "2 ranks") and all(row["value"] > 0 for row in rows)
    wrong = CliRunner().invoke(app, ["bench", "ranks", "--context-parallel", "3", "--device", "cpu"])
    assert wrong.exit_code == 1 and "take a divisor of the 32 query heads" in wrong.output


def test_floors_are_those_of_plan():
    config = named_config("llama-3.1-8b")
    one, two = (Planned.of(config, "NVIDIA H200", Split(ranks), 1, 1024, None, "decode") for ranks in (1, 2))
    assert 0.5 * one.floor < two.floor < 0.51 * one.floor and 0.6 * one.predicted < two.predicted < 0.65 * one.predicted
    small = Planned.of(config, "NVIDIA H200", Split(), 1, 1024, "int4", "decode")
    assert small.floor < 0.4 * one.floor and small.floor < small.predicted < 0.5 * one.predicted
    assert Planned.of(config, "cpu", Split(), 1, 1024, None, "decode") == Planned()


def test_a_context_below_the_measured_steps_is_refused():
    with pytest.raises(InvalidOptionError, match="--context 64 is not allowed: it is above 64"):
        Work((1,), 64, 0, False).check()
