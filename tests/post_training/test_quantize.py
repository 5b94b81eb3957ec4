"""`minllm quantize`: what is written loads again, and each method does what it is for."""

import json
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import minllm
from minllm import LLM, SamplingParams
from minllm.cli import app as cli
from minllm.errors import CheckpointError, InvalidOptionError, UnsupportedModelError
from minllm.models.checkpoint import Checkpoint
from minllm.models.config_reader import read_model_config
from minllm.models.layout import layout_of
from minllm.models.model import load_model
from minllm.models.source import bundled_model, open_source
from minllm.ops.numpy_ops import NumpyOps
from minllm.post_training import grids
from minllm.post_training.calibration import Inputs, default_text
from minllm.post_training.files import copy_rest
from minllm.post_training.migration import awq_scales
from minllm.post_training.quantize import TOKENS, Quantizer, Scheme, quantize
from minllm.post_training.rounding import round_matrix
from minllm.weights.formats import WEIGHT_FORMATS
from tests.models.batches import logits_of
from tests.models.gguf.small_model import metadata, tensors
from tests.models.gguf.writer import write_gguf
from tests.models.parity import saved_model
from tests.models.random_models import prompt

FORMATS = ("int8", "fp8", "fp8_block", "int4", "int4_g64_zeros", "nf4")


def load(directory):
    source = open_source(directory)
    config = source.config()
    checkpoint = source.checkpoint(config)
    found = source.weight_format(config, checkpoint)
    return load_model(directory, NumpyOps(), checkpoint=checkpoint, config=config, weight_format=found)


def matrices(model):
    for layer in model.weights.layers:
        for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
            yield linear.format.dequantize(linear.weight)


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_writes_what_loading_with_the_option_makes(name, tmp_path):
    quantize(bundled_model(), tmp_path / "out", name)
    with LLM(device="cpu", quantization=name, max_model_len=64) as option:
        made = list(matrices(option.engine.model))
    for ours, theirs in zip(matrices(load(tmp_path / "out")), made, strict=True):
        if name == "fp8_block":  # blocks of q, k and v are counted from their own first outputs
            np.testing.assert_allclose(ours, theirs, rtol=2**-3, atol=1e-3)
        elif name == "nf4":  # and so are blocks of absmax, whose rounding is off by 1 % of their largest
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.01 * np.abs(theirs).max())
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    with LLM(tmp_path / "out", device="cpu", max_model_len=64) as llm:
        assert llm.generate("def f(", SamplingParams(max_tokens=2))[0].outputs[0].text


def test_tensors_are_where_compressed_tensors_puts_them(tmp_path):
    quantize(bundled_model(), tmp_path / "out", "int4_g64_zeros")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["format"] == "pack-quantized" and config["ignore"] == ["lm_head"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert (weights["group_size"], weights["num_bits"], weights["symmetric"]) == (64, 4, False)
    tensors = load_file(tmp_path / "out" / "model-00001.safetensors")
    place = "model.layers.0.self_attn.q_proj"
    shapes = {name.removeprefix(f"{place}."): list(tensor.shape) for name, tensor in tensors.items() if name.startswith(place)}
    assert shapes == {"weight_packed": [320, 40], "weight_scale": [320, 5], "weight_shape": [2], "weight_zero_point": [40, 5]}
    assert tensors[f"{place}.weight_shape"].tolist() == [320, 320]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert index["model.embed_tokens.weight"] == "model-00007.safetensors" and index[f"{place}.weight_scale"] == "model-00001.safetensors"


def test_tensors_are_where_bitsandbytes_puts_them(tmp_path):
    """Codes by a product with all sixteen numbers, the first of two in the high half; absmax by its map, its scale and the offset."""
    quantize(bundled_model(), tmp_path / "out", "nf4")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["load_in_4bit"], config["bnb_4bit_quant_type"]) == ("bitsandbytes", True, "nf4")
    tensors, place = load_file(tmp_path / "out" / "model-00001.safetensors"), "model.layers.0.self_attn.o_proj.weight"
    found = {name.removeprefix(place): tensor.numpy() for name, tensor in tensors.items() if name.startswith(place)}
    state = json.loads(bytes(found[".quant_state.bitsandbytes__nf4"]))
    assert (state["shape"], state["blocksize"], state["nested_blocksize"]) == ([320, 320], 64, 256)
    assert [found[name].shape for name in ("", ".absmax", ".nested_absmax")] == [(51200, 1), (1600,), (7,)]
    matrix = Checkpoint(bundled_model()).tensor(place).astype(np.float64).reshape(-1, 64)
    absmax = found[".nested_quant_map"].astype(np.float64)[found[".absmax"]]
    absmax = absmax * np.repeat(found[".nested_absmax"], 256)[:1600] + state["nested_offset"]
    np.testing.assert_allclose(absmax, np.abs(matrix).max(axis=1), rtol=0.02)
    table = found[".quant_map"].astype(np.float64)
    codes = np.abs(matrix[:, :, None] / np.abs(matrix).max(axis=1)[:, None, None] - table).argmin(axis=2).reshape(-1, 2)
    np.testing.assert_array_equal(found[""][:, 0], codes[:, 0] * 16 + codes[:, 1])


def test_compensation_halves_what_int4_costs(tmp_path, request):
    """In perplexity of some unseen text. By default the text of calibration is fixed too: the package's own changes with every commit."""
    ids, found, whole = None, {}, minllm.held_out_text()
    text, tokens, unseen = (None, TOKENS, 6000) if request.config.option.exhaustive else (whole[6000:], 2048, 3000)
    for method in ("round", "gptq"):
        quantize(bundled_model(), tmp_path / method, "int4", method, text, tokens)
        with LLM(tmp_path / method, device="cpu", max_model_len=512) as llm:
            ids = ids or llm.tokenizer.encode(whole[:unseen])
            found[method] = llm.perplexity(ids, 512, 384)
    with LLM(device="cpu", max_model_len=512) as llm:
        plain = llm.perplexity(ids, 512, 384)
    assert found["gptq"] - plain < 0.5 * (found["round"] - plain)


class Exact(NamedTuple):
    """A grid of all numbers."""

    scales: np.ndarray
    zeros: None = None

    def encode(self, values):
        return values

    decode = encode


@pytest.mark.parametrize("method", ["smoothquant", "awq", "smoothquant+gptq"])
def test_migrated_scales_leave_the_model_what_it_is(method, tmp_path, monkeypatch):
    """Before anything is rounded; without an error to avoid, AWQ's search has to be given its ratio."""
    monkeypatch.setattr("minllm.post_training.migration.RATIOS", [0.5])
    source, ops = saved_model("smollm"), NumpyOps()
    config, checkpoint = read_model_config(source), Checkpoint(source)
    exact = Scheme(0, lambda matrix: Exact(np.ones(len(matrix))), lambda rounded: {"weight": rounded.codes}, {})
    Quantizer(layout_of(config), checkpoint, exact, method, prompt(130)).write(tmp_path)
    moved, plain = load_model(source, ops, checkpoint=Checkpoint(tmp_path)), load_model(source, ops)
    expected = logits_of(ops, plain, prompt(9))
    np.testing.assert_allclose(logits_of(ops, moved, prompt(9)), expected, atol=1e-4 * np.abs(expected).max())
    for ours, theirs in zip(moved.weights.layers, plain.weights.layers, strict=True):
        assert not np.allclose(ours.mlp.down.weight, theirs.mlp.down.weight)
        if method != "awq":
            assert not np.allclose(ours.attention.norm.weight, theirs.attention.norm.weight)


@pytest.mark.parametrize(
    "weight, given, codes, wrong",
    [(np.nan, 1, 1, "weights and outputs"), (1, np.inf, 1, "inputs and outputs"), (1, 1, np.nan, "rounded weights")],
)
def test_awq_names_numbers_that_are_not_finite(weight, given, codes, wrong):
    inputs, matrix = Inputs(4), np.full((3, 4), weight, np.float32)
    inputs.add(np.full((2, 4), given, np.float32))
    with pytest.raises(CheckpointError, match=rf"a matrix \[3, 4\]: NaN or infinity is among its {wrong}\."), np.errstate(invalid="ignore"):
        awq_scales(inputs, matrix, lambda scaled: scaled * np.float32(codes))


def test_gptq_makes_up_for_errors():
    """On correlated inputs its product is nearer than rounding's; without correlation both are the same."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((16, 64)).astype(np.float32)
    x = (rng.standard_normal((500, 8)) @ rng.standard_normal((8, 64)) + 0.1 * rng.standard_normal((500, 64))).astype(np.float32)

    def grid(part):
        return grids.int4_grid(part, has_zeros=False, clip=False)

    nearest, compensated = round_matrix(matrix, 32, grid), round_matrix(matrix, 32, grid, x.T @ x)
    errors = [np.square(x @ (one.numbers - matrix).T).sum() for one in (nearest, compensated)]
    assert errors[1] < 0.3 * errors[0]
    np.testing.assert_array_equal(round_matrix(matrix, 32, grid, np.eye(64, dtype=np.float32)).codes, nearest.codes)


def test_a_clipped_grid_is_never_worse():
    group = np.random.default_rng(0).standard_t(3, (200, 32)).astype(np.float32)
    for make_grid in (partial(grids.int4_grid, has_zeros=False), partial(grids.int4_grid, has_zeros=True), grids.nf4_grid):
        errors = []
        for clip in (False, True):
            rounded = round_matrix(group, 32, partial(make_grid, clip=clip))
            errors.append(np.square(rounded.numbers - group).sum(axis=1))
        assert (errors[1] <= errors[0] * (1 + 1e-6)).all() and errors[1].sum() < 0.95 * errors[0].sum()


def test_what_is_refused(tmp_path):
    for arguments, message in (
        (("float16",), "format 'float16' cannot be written"),
        (("int3",), "format 'int3' cannot be written"),
        (("int4", "best"), "method 'best' is not allowed"),
        (("int8", "clip"), "method 'clip' is not allowed with int8"),
        (("int4_g128",), "int4_g128 has groups of 128 inputs"),
        (("int4", "gptq", ""), "the calibration text has 1 tokens"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            quantize(bundled_model(), tmp_path / "out", *arguments)
        assert not (tmp_path / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidOptionError, match="there exists: give the name of a new directory"):
        quantize(bundled_model(), tmp_path / "there", "int8")
    quantize(bundled_model(), tmp_path / "once", "int8")
    with pytest.raises(InvalidOptionError, match="is stored quantised already"):
        quantize(tmp_path / "once", tmp_path / "twice", "int8")
    with pytest.raises(CheckpointError, match="There is no directory .*nowhere"):
        quantize(tmp_path / "nowhere", tmp_path / "out", "int8")
    with pytest.raises(UnsupportedModelError, match="model.gguf is a GGUF file"):
        quantize(write_gguf(tmp_path / "model.gguf", metadata(), tensors()), tmp_path / "out", "int8")
    with pytest.raises(UnsupportedModelError, match="as GPT-2 does"):
        quantize(saved_model("gpt2"), tmp_path / "out", "int8")


def test_the_command(tmp_path):
    result = CliRunner().invoke(cli.app, ["quantize", str(bundled_model()), str(tmp_path / "out"), "--format", "int8"])
    assert result.exit_code == 0 and (tmp_path / "out" / "tokenizer.json").exists()
    result = CliRunner().invoke(cli.app, ["quantize", str(bundled_model()), str(tmp_path / "out"), "--format", "int8"])
    assert result.exit_code == 1


def test_every_chat_template_is_copied(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    names = ("config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    copy.mkdir()
    copy_rest(source, copy, {"bits": 4})
    assert all((copy / name).exists() for name in names)


def test_the_calibration_text_is_not_the_held_out_text():
    assert len(default_text()) > 500_000
    lines = {line.strip() for line in minllm.held_out_text().splitlines() if len(line.strip()) >= 60}
    assert not lines & {line.strip() for line in default_text().splitlines()}
    assert set(FORMATS) < set(WEIGHT_FORMATS)
