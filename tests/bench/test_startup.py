"""The benchmark of starting, on the bundled model."""

import json

import pytest

from minllm.bench import startup
from minllm.errors import InvalidOptionError, MinLLMError


def test_both_starts_are_recorded(tmp_path, capsys):
    startup.run("bundled", "cpu", tmp_path / "record.json")
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [(row["benchmark"], row["variant"]) for row in rows] == [("start-up", f"{state} kernel cache") for state in ("empty", "full")]
    assert all(0.1 < row["value"] < 600 for row in rows)
    assert "from the command to the first token" in capsys.readouterr().out


def test_a_start_that_fails_is_an_error(tmp_path, forked_python):
    with pytest.raises(InvalidOptionError, match="--model nowhere"):
        startup.run("nowhere", "cpu", None)
    with pytest.raises(MinLLMError, match="exit code 1"):
        startup.seconds_to_first_token("nowhere", "cpu", str(tmp_path))
