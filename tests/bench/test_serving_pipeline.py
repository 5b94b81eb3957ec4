"""The benchmark of the pipeline, on the bundled model's shape of a few tokens."""

import json

import pytest

from minllm.bench.serving import pipeline
from minllm.errors import InvalidOptionError
from minllm.models.tokenizer import Tokenizer


def test_variants_compute_the_same_and_are_recorded(tmp_path, capsys):
    path = tmp_path / "record.json"
    pipeline.run("bundled", dict(device="cpu", max_num_seqs=4), num_prompts=3, tokens=2, repeats=1, json_file=path)
    rows = json.loads(path.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["serial loop", "three threads", "streamed"]
    assert all(row["value"] > 0 and row["unit"] == "tokens/s" for row in rows) and rows[1]["peer"] == "serial loop"
    assert "of the serial loop's speed" in capsys.readouterr().out


def test_tokens_that_no_prompt_has_room_for_are_refused():
    """They would be counted in the speed, and never made."""
    with pytest.raises(InvalidOptionError, match=r"--tokens 1000 is not allowed: behind the longest prompt there is room for [67]\d\d\."):
        pipeline.run("bundled", dict(device="cpu", max_num_seqs=1), num_prompts=1, tokens=1000, repeats=1, json_file=None)


def test_every_id_of_a_shape_has_a_word(tmp_path):
    pipeline.write_words(tmp_path, 5000)
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.vocab_size == 5000 and tokenizer.decode([4999]) == " word4999"
    text = "def f(x):\n    return x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
