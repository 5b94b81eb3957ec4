"""int8, fp8, int4 and nf4: their errors against float64, bytes, codes by hand, and models that are quantised while they load."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import minllm
from minllm import LLM, SamplingParams, costs
from minllm.bench.generate import write_shape
from minllm.cli import app as cli
from minllm.engine.build import weights
from minllm.engine.options import EngineOptions
from minllm.errors import CheckpointError, InvalidOptionError
from minllm.kernels.quantization.fp8_block import quantize_row_groups
from minllm.kernels.quantization.groups import NESTED_BLOCK
from minllm.kernels.quantization.nf4 import NF4_CODES, Nf4Weight, dynamic_map
from minllm.kernels.quantization.reference import pack_nibbles
from minllm.models.config_reader import read_model_config
from minllm.models.layout import layout_of
from minllm.models.model import load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import named_config
from minllm.ops.dry_run_ops import DryRunOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.runtime.dry_run import dry_run
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.pieces import PIECE_NUMBERS
from tests.engine.models import model_directory
from tests.ops.small_models import CONFIGS, small_config
from tests.runtime.h200 import H200

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = quantizations()
INT4 = [name for name in NAMES if name.startswith("int4")]


def matrix(outputs=24, inputs=256, seed=0):
    """Rows of different sizes, one of them zero."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((outputs, inputs)) * np.exp(rng.standard_normal((outputs, 1)))
    rows[3] = 0
    return rows.astype(BFLOAT16)


def arrays(weight):
    return [one for one in weight if one is not None]


def test_the_names():
    assert NAMES == ("fp8", "fp8_block", "int8", "int4", "int4_g64", "int4_g128", "int4_zeros", "int4_g64_zeros", "int4_g128_zeros", "nf4")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outputs", [1, 24])
def test_the_bytes_are_those_of_the_arrays(name, outputs):
    """Counted, encoded, and without contents."""
    found = WEIGHT_FORMATS[name]
    weight = found.encode(matrix()[:outputs])
    assert sum(one.nbytes for one in arrays(weight)) == found.matrix_bytes(outputs, 256)
    with dry_run(H200):
        empty = found.without_contents(DryRunOps("bfloat16"), outputs, 256)
    assert [(one.shape, one.dtype) for one in arrays(empty)] == [(one.shape, one.dtype) for one in arrays(weight)]


@pytest.mark.parametrize("name", ["int8", *INT4])
def test_integers_are_off_by_half_a_step_at_most(name):
    """And by what rounding a float16 scale costs: 2**-11 of the number; with zeros also half a step for the rounded zero point."""
    found, exact = WEIGHT_FORMATS[name], matrix().astype(np.float64)
    weight = found.encode(matrix())
    groups = np.abs(exact).reshape(24, -1, found.group_size or 256)
    step = weight.scales.T.astype(np.float64).reshape(*groups.shape[:2], 1)
    steps = 1.0 if "zeros" in name else 0.5
    bound = steps * step + groups * (2**-10 if "int4" in name else 2**-20) + 2**-25
    assert (np.abs(found.dequantize(weight) - exact).reshape(groups.shape) <= bound).all()
    assert (found.dequantize(weight)[3] == 0).all()


def test_fp8_keeps_three_bits():
    found, exact = WEIGHT_FORMATS["fp8"], matrix().astype(np.float64)
    scale = np.abs(exact).max(axis=1, keepdims=True) / 448
    error = np.abs(found.dequantize(found.encode(matrix())) - exact)
    assert (error <= np.abs(exact) * (2**-4 + 2**-20) + scale * 2**-10 * 1.01).all()  # half of the smallest step, 2**-9, is absolute
    assert (error[3] == 0).all()


def test_nf4_takes_the_nearest_code_of_nearly_the_largest_number():
    """A block is off by half the distance to the next code, and by the error of its absmax."""
    found, exact = WEIGHT_FORMATS["nf4"], matrix().astype(np.float64)
    weight = found.encode(matrix())
    blocks = exact.reshape(24, 4, 64)
    absmax = np.abs(blocks).max(axis=2)
    block = weight.first_blocks[:, None] + np.arange(4)
    stored = weight.map[weight.absmax.T] * weight.nested[block // NESTED_BLOCK] + weight.offsets[:, None]
    widest = np.abs(absmax - absmax.mean()).max()
    assert (np.abs(stored - absmax) <= widest * np.diff(dynamic_map()).max() / 2 * 1.001 + 1e-6).all()
    gap = np.diff(NF4_CODES).max() / 2
    bound = gap * absmax[..., None] + np.abs(stored - absmax)[..., None] + 1e-6
    assert (np.abs(found.dequantize(weight).reshape(blocks.shape) - blocks) <= bound).all()


def test_nf4_is_bitsandbytes():
    """The codes are quantiles of a normal distribution; the map has 127 numbers of either sign, zero, and 1 but not -1."""
    assert (np.diff(NF4_CODES) > 0).all() and NF4_CODES[0] == -1 and NF4_CODES[7] == 0 and NF4_CODES[15] == 1
    normal = torch.distributions.Normal(0, 1)
    upper = normal.icdf(torch.linspace(0.9677083, 0.5, 9)[:-1].double())
    np.testing.assert_allclose(NF4_CODES[8:], (upper / upper[0]).flip(0), atol=1e-6)
    table = dynamic_map()
    assert len(np.unique(table)) == 256 and table[127] == 0 and table[255] == 1
    np.testing.assert_array_equal(table[:127], -table[128:255][::-1])
    np.testing.assert_allclose(table[[128, 254]], [0.55e-6, 0.1 + 0.9 * 127 / 128], rtol=1e-2)


def test_an_nf4_row_may_count_its_blocks_from_elsewhere():
    """Rows of two modules side by side, each with blocks, offset and nested scales of its own."""
    found, parts = WEIGHT_FORMATS["nf4"], [WEIGHT_FORMATS["nf4"].encode(matrix(300, 64, seed)) for seed in range(2)]
    stacked = [np.concatenate(both) for both in zip(*parts, strict=True)]
    absmax = np.concatenate([one.absmax for one in parts], axis=1)
    both = Nf4Weight(*stacked)._replace(absmax=absmax, map=parts[0].map, table=parts[0].table)
    both.first_blocks[300:] += NESTED_BLOCK * len(parts[0].nested)
    np.testing.assert_array_equal(found.dequantize(both), np.concatenate([found.dequantize(one) for one in parts]))


def test_codes_by_hand():
    """One group of each: -7 steps and 7 steps are the ends of int4's symmetric range, 0 and 15 those with zeros."""
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = [-7, 7, 1, 0.4]
    weight = WEIGHT_FORMATS["int4"].encode(row)
    assert weight.scales[0, 0] == 1 and weight.zeros is None
    np.testing.assert_array_equal(weight.codes[0, :4], pack_nibbles(np.array([1, 15, 9, 8, 8, 8, 8, 8], np.uint8)))
    row[0, :4] = [-3, 12, 1, 0.4]
    weight = WEIGHT_FORMATS["int4_zeros"].encode(row)
    assert weight.scales[0, 0] == 1 and weight.zeros[0, 0] == 3
    np.testing.assert_array_equal(weight.codes[0, :4], pack_nibbles(np.array([0, 15, 4, 3, 3, 3, 3, 3], np.uint8)))
    weight = WEIGHT_FORMATS["int8"].encode(np.array([[127, -127, 1.4] + [0] * 13], np.float32))
    assert weight.scales[0] == 1 and weight.codes[0, :3].tolist() == [127, -127, 1]
    weight = WEIGHT_FORMATS["nf4"].encode(np.array([[1, -1, 0, 0.17] + [0] * 60], np.float32))
    assert weight.codes[0, :3].tolist() == [0xF0, 0x79, 0x77]  # the first of two codes in the upper half
    weight = WEIGHT_FORMATS["fp8"].encode(np.array([[448, -1, 17] + [0] * 13], np.float32))
    assert weight.codes[0, :3].view(ml_dtypes.float8_e4m3fn).astype(float).tolist() == [448, -1, 16]


def numbers_of_rows(name, x):
    """The numbers that rows of x stand for once they are quantised."""
    if name == "fp8_block":
        codes, scales = quantize_row_groups(x)
        return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.repeat(scales, 128, axis=1)
    found = WEIGHT_FORMATS[name]
    return found.dequantize(found.encode(x)).astype(np.float64)


def test_blocks_of_fp8_may_be_smaller_at_the_edges():
    """200 x 300: the second block has 72 outputs, the third 44 inputs."""
    found, numbers = WEIGHT_FORMATS["fp8_block"], np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    numbers[130:, 256:] *= 100
    weight = found.encode(numbers)
    assert weight.scales.shape == (2, 3) and weight.scales[1, 2] == np.abs(numbers[128:, 256:]).max() * np.float32(1 / 448)
    np.testing.assert_allclose(found.dequantize(weight), numbers, rtol=2**-4, atol=weight.scales.max() * 2**-10)
    assert found.matrix_bytes(200, 300) == sum(one.nbytes for one in weight)


@pytest.mark.parametrize("name", NAMES)
def test_the_linear_is_that_of_the_dequantised_numbers(name):
    """In float64; int8 and fp8 also quantise the rows of x. A row of zeros gives the bias."""
    found, rng = WEIGHT_FORMATS[name], np.random.default_rng(1)
    x, bias, weight = rng.standard_normal((5, 256)).astype(np.float32), rng.standard_normal(24).astype(np.float32), found.encode(matrix())
    x[2] = 0
    rows = x.astype(np.float64)
    if name in ("int8", "fp8", "fp8_block"):
        rows = numbers_of_rows(name, x)
        assert 0 < np.abs(rows - x).max() < 0.2
    expected = rows @ found.dequantize(weight).astype(np.float64).T + bias
    out = found.linear(x, weight, bias)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(out[2], bias)
    assert found.linear(x.astype(BFLOAT16), weight).dtype == BFLOAT16
    assert found.linear(x.astype(BFLOAT16), weight, out_dtype=np.float32).dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_a_large_matrix_is_quantised_in_pieces(name):
    """As its last rows alone would be, except for what nf4 shares between them; fp8's last block has 5 rows."""
    found, large = WEIGHT_FORMATS[name], np.resize(matrix(), (PIECE_NUMBERS // 256 + 5, 256))
    whole, last = found.encode(large), 5 if name == "fp8_block" else 24
    np.testing.assert_array_equal(whole.codes[-last:], found.encode(large[-last:]).codes)
    assert len(whole.codes) == len(large)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_quantised_while_it_loads(name, tmp_path):
    """Its logits are those of a plain model of the dequantised numbers, up to the rounding of activations in int8 and fp8."""
    config, found, ops = small_config("llama, wide", tmp_path), WEIGHT_FORMATS[name], NumpyOps()
    model = load_model(tmp_path, ops, checkpoint=RandomCheckpoint(config), weight_format=found)
    qkv = model.weights.layers[0].attention.qkv
    source = RandomCheckpoint(config)
    parts = [source.tensor(f"model.layers.0.self_attn.{part}_proj.weight") for part in "qkv"]
    for ours, theirs in zip(arrays(qkv.weight), arrays(found.encode(np.concatenate(parts))), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert model.weights.lm_head.weight is model.weights.embedding
    held = sum(one.nbytes for layer in model.weights.layers for linear in linears(layer) for one in arrays(linear.weight))
    layout = layout_of(config, weight_format=found)
    plain = layout_of(config).weight_bytes(2) - 2 * config.num_hidden_layers * costs.layer_matrix_parameters(config)
    assert layout.weight_bytes(2) == held + plain == costs.weight_bytes(config, 2, weight_format=found)


def linears(layer):
    return layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down


@pytest.fixture(scope="module")
def unseen():
    """(some token ids of unseen text, their perplexity under the bundled model as it is stored)."""
    with LLM(device="cpu", max_model_len=512) as plain:
        ids = plain.tokenizer.encode(minllm.held_out_text()[:4000])[:500]
        return ids, plain.perplexity(ids)


@pytest.mark.parametrize("name", ["fp8", "fp8_block", "int8", "int4", "int4_g64_zeros", "nf4"])
def test_the_bundled_model_still_predicts_python(name, unseen):
    ids, perplexity = unseen
    bound = {"fp8": 0.02, "fp8_block": 0.02, "int8": 0.02, "nf4": 0.1}.get(name, 0.2)
    with LLM(device="cpu", quantization=name, max_model_len=512) as llm:
        assert abs(llm.perplexity(ids) / perplexity - 1) < bound
        assert len(llm.generate(ids[:9], SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids) == 2


def test_groups_that_do_not_divide_the_bundled_model():
    with pytest.raises(InvalidOptionError, match=r"int4_g128 has groups of 128 inputs, and model.layers.0.self_attn.q_proj has 320"):
        LLM(device="cpu", quantization="int4_g128")
    result = CliRunner().invoke(cli.app, ["plan", "bundled", "--dtype", "int4_g128"])
    assert result.exit_code != 0 and "and the qkv projection of one GPU has 320" in " ".join(result.output.split())


def test_experts_are_refused():
    """In formats without kernels for them, and on a GPU with rows that are no whole loads of codes, before memory is taken."""
    formats = "fp8, int4, int4_g64, int4_g128"
    for name in ("int8", "int4_zeros", "nf4"):
        with pytest.raises(InvalidOptionError, match=f"has experts, which minllm multiplies .* as one of {formats}, not in {name}"):
            LLM(model_directory("qwen3_moe"), device="cpu", quantization=name)
    config = replace(named_config("qwen3-30b-a3b"), intermediate_size=768 // 32)
    with pytest.raises(InvalidOptionError, match=r"rows of a multiple of 16 numbers, and here the inner width \(on each rank\) is 24"):
        weights.check_expert_widths("cuda", config, WEIGHT_FORMATS["fp8"])
    weights.check_expert_widths("cuda", named_config("qwen3-30b-a3b"), WEIGHT_FORMATS["int4_g128"])


@pytest.mark.parametrize("name", ["fp8", "int4"])
def test_quantised_experts_generate_as_their_dequantised_model(name, tmp_path):
    """On a CPU: the experts' codes are held, and dequantised where they are multiplied."""
    write_shape(tmp_path, CONFIGS["experts of whole groups"])
    options = dict(device="cpu", load_format="dummy", max_model_len=32, max_num_seqs=1)
    with LLM(tmp_path, quantization=name, **options) as llm, LLM(tmp_path, **options) as plain:
        ours, theirs = llm.logits([5, 9, 2, 34, 17]), plain.logits([5, 9, 2, 34, 17])
        assert 0 < np.abs(ours - theirs).max() < 0.3 * np.abs(theirs).max()
        mlp = llm.engine.model.weights.layers[0].mlp
        assert mlp.gate_up.format.name == name and mlp.gate_up.weight.codes.dtype == np.uint8


def test_a_gpu_without_fp8_is_refused(monkeypatch):
    monkeypatch.setattr("minllm.runtime.device.current_device", lambda: replace(H200, compute_capability=(8, 0)))
    weights._check_capability(WEIGHT_FORMATS["int8"])
    with pytest.raises(InvalidOptionError, match="quantization='fp8' needs a GPU of compute capability 8.9 or more, and this one has 8.0"):
        weights._check_capability(WEIGHT_FORMATS["fp8"])
    with pytest.raises(InvalidOptionError, match=r"stored quantised \(own\) needs .* take a checkpoint in int8 or 16 bits"):
        weights._check_capability(SimpleNamespace(name="own", is_option=False, since=WEIGHT_FORMATS["fp8"].since))


def test_unknown_names():
    for wrong in ("int3", "INT8", "gptq", "float16", 8, ["int8"]):
        with pytest.raises(InvalidOptionError, match="is not allowed: quantization is None or one of fp8, fp8_block, int8, int4, "):
            EngineOptions(quantization=wrong)
    result = CliRunner().invoke(cli.app, ["plan", "llama-3.1-8b", "--dtype", "int3"])
    assert result.exit_code != 0


def test_a_plan_counts_scales():
    config = named_config("llama-3.1-8b")
    numbers = config.num_hidden_layers * costs.layer_matrix_parameters(config)
    plain = costs.weight_bytes(config) - 2 * numbers
    rows = config.num_hidden_layers * (6144 + 4096 + 2 * 14336 + 4096)
    assert costs.weight_bytes(config, weight_format=WEIGHT_FORMATS["fp8"]) == plain + numbers + 4 * rows
    assert costs.weight_bytes(config, weight_format=WEIGHT_FORMATS["int4_g128"]) == plain + numbers * (64 + 2) // 128
    assert costs.weight_bytes(config, weight_format=WEIGHT_FORMATS["int4_zeros"]) == plain + numbers * (16 + 3) // 32
    nested = 4 * numbers // 64 // 256 + config.num_hidden_layers * 4 * 4 * (256 + 16)
    assert costs.weight_bytes(config, weight_format=WEIGHT_FORMATS["nf4"]) == plain + numbers * 33 // 64 + 8 * rows + nested
    result = CliRunner().invoke(cli.app, ["plan", "llama-3.1-8b", "--dtype", "int4", "--gpu", "h200"])
    assert result.exit_code == 0 and "in int4" in result.stdout


def test_a_scale_that_is_not_finite_is_refused(tmp_path):
    """With the names of the modules, for NaN that was allowed, and for numbers beyond the scales of int4."""
    config = small_config("llama, wide", tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    for wrong, formats in ((np.nan, NAMES), (np.inf, NAMES), (1e30, INT4)):
        for one in formats:
            checkpoint = RandomCheckpoint(config)
            plain, changed = checkpoint.tensor, checkpoint.tensor(name).copy()
            changed[5, 7] = wrong
            checkpoint.tensor = lambda asked, plain=plain, changed=changed: changed if asked == name else plain(asked)
            with pytest.raises(CheckpointError, match=rf"of model.layers.1.mlp.down_proj give {one} a scale that is NaN or infinite"):
                load_model(tmp_path, NumpyOps(), checkpoint=checkpoint, weight_format=WEIGHT_FORMATS[one])


def test_a_matrix_that_does_not_fit_is_refused_before_anything_is_read(tmp_path):
    Path(tmp_path, "config.json").write_text(json.dumps(CONFIGS["llama"] | dict(hidden_size=32)))  # with an inner width of 24
    config = read_model_config(tmp_path)
    checkpoint = RandomCheckpoint(config)
    checkpoint.tensor = lambda name: pytest.fail(f"{name} was read")
    for name, size in (("int4", 32), ("int4_g64_zeros", 64), ("nf4", 64)):
        with pytest.raises(InvalidOptionError, match=f"A matrix in {name} has groups of {size} inputs, and model.layers.0"):
            load_model(tmp_path, NumpyOps(), checkpoint=checkpoint, weight_format=WEIGHT_FORMATS[name])
    excluded = replace(WEIGHT_FORMATS["int4"], excluded=("lm_head", "down_proj"))
    layout_of(config, weight_format=excluded).check_format()
