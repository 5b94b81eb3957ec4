"""Model directories and prompts that could take a machine's time or memory are refused by name before they do."""

import json
import os
import shutil
import time

import numpy as np
import pytest

from minllm import LLM
from minllm.errors import CheckpointError, InvalidOptionError, InvalidRequestError, OutOfMemoryError
from minllm.kernels.rope.reference import TABLE_ROWS, rope_table
from tests.engine.models import model_directory


def copy_of(directory, tmp_path, **changes):
    """A copy of a model directory with some keys of config.json changed."""
    copy = tmp_path / "model"
    shutil.copytree(directory, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    return copy


def test_a_billion_layers_are_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="num_hidden_layers = 1073741824, and it must be a whole number from 1 to 10000"):
        LLM(copy_of(model_directory("small"), tmp_path, num_hidden_layers=2**30), device="cpu", load_format="dummy")


def test_layer_types_of_another_type(tmp_path):
    with pytest.raises(CheckpointError, match="layer_types = 5, and it must be a list"):
        LLM(copy_of(model_directory("small"), tmp_path, layer_types=5), device="cpu")


def test_a_model_that_claims_a_billion_positions_gets_a_table_for_what_fits(tmp_path):
    directory = copy_of(model_directory("small"), tmp_path, max_position_embeddings=2**30)
    with LLM(directory, device="cpu", kv_cache_memory_bytes=1 << 19) as llm:
        table = llm.engine.model.ropes.whole
        assert llm.max_model_len <= len(table) < 1000 and llm.generate([1, 2, 3])
    with pytest.raises(OutOfMemoryError, match="max_model_len=1073741824 needs a table of rotary positions"):
        LLM(directory, device="cpu", max_model_len=2**30)


def test_the_rotary_table_is_the_same_in_parts():
    frequencies = [1.0, 0.01]
    angles = np.arange(TABLE_ROWS + 3)[:, None] * np.array(frequencies)
    assert np.array_equal(rope_table(TABLE_ROWS + 3, 4, frequencies), np.hstack([np.cos(angles), np.sin(angles)]).astype(np.float32))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"])
def test_a_fifo_is_no_file_of_a_model(name, tmp_path):
    directory = copy_of(model_directory("small"), tmp_path)
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    with pytest.raises(CheckpointError, match=f"{name} is a FIFO, a socket or a device"):
        LLM(directory, device="cpu")


@pytest.mark.parametrize("shard", ["a\0.safetensors", "a\ud800.safetensors", "a\n.safetensors"])
def test_shard_names_that_no_file_has(shard, tmp_path):
    directory = copy_of(model_directory("small"), tmp_path)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="names the shard"):
        LLM(directory, device="cpu")


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "no\0thing", "no\ud800thing"])
def test_the_name_of_a_model_elsewhere_is_no_directory(name):
    with pytest.raises(CheckpointError, match="There is no directory .*minllm downloads nothing"):
        LLM(name)


def test_an_empty_path_is_no_model():
    with pytest.raises(InvalidOptionError, match="model='' is not allowed"):
        LLM("")


def test_progress_that_cannot_be_called():
    with pytest.raises(InvalidOptionError, match="progress='x' is not allowed"):
        LLM(progress="x")


def test_an_array_without_axes_is_no_prompt(llm):
    with pytest.raises(InvalidRequestError, match="not a prompt"):
        llm.generate(np.array(3))
    with pytest.raises(InvalidRequestError, match="not a prompt"):
        llm.logits(np.array(3))


def test_a_long_prompt_is_refused_before_it_is_tokenised(llm, monkeypatch):
    text = "x = 1\n" * 5_000_000
    start = time.process_time()
    with pytest.raises(InvalidRequestError, match="30,000,000 characters"):
        llm.generate(text)
    with pytest.raises(InvalidRequestError, match="Prompt 1 of 2"):
        llm.generate(["a", text])
    assert time.process_time() - start < 2
