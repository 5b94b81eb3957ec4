"""Checkpoints of every kind, written by hand (writers.py): the matrices that are read are those that they stand for."""

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minllm import LLM
from minllm.errors import CheckpointError, InvalidOptionError, UnsupportedModelError
from minllm.models.layout import layout_of, leaves
from minllm.models.model import load_model
from minllm.models.quantized.words import pack_words, unpack_words
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.source import open_source
from minllm.models.weights import WeightReader
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.stored import StoredLinear
from tests.models.batches import logits_of
from tests.models.quantized.cases import AWQ, BLOCKS, BNB, CASES, DEQUANTISED, GPTQ, w4, w8
from tests.models.quantized.writers import packed
from tests.ops.small_models import CONFIGS

# 448 rows of q, k and v, whose blocks of 128 are cut at 64 rows by k and v; 192 inputs of down, the second block has 64 of them.
CONFIG = CONFIGS["llama, wide"] | {"num_attention_heads": 5, "intermediate_size": 192, "torch_dtype": "bfloat16"}


IN_GROUPS_OF_128 = {"num_attention_heads": 4, "intermediate_size": 256}


def write(directory, quantization, writer, plain=(), **config):
    """A checkpoint; plain: parts of names of modules that stay so. The matrices that it stands for, by their names."""
    if '"group_size": 128, "symmetric": false' in json.dumps(quantization) or quantization.get("group_size") == 128:
        config = IN_GROUPS_OF_128 | config
    rng, small = np.random.default_rng(0), CONFIG | {"head_dim": 64} | config
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(small))
    made = open_source(directory).config()
    (directory / "config.json").write_text(json.dumps(small | {"quantization_config": quantization}))
    source, tensors, matrices = RandomCheckpoint(made), {}, {}
    layout = layout_of(made)
    for leaf in leaves(layout.model):
        for one in leaf.projections if isinstance(leaf, StoredLinear) and leaf is not layout.model.lm_head else ():
            if not any(part in one.name for part in plain):
                written, matrices[one.name] = writer(rng, one.name, one.outputs, one.inputs)
                tensors |= written
    for name in source.names():
        if name.removesuffix(".weight") not in matrices:
            tensors[name] = torch.from_numpy(source.tensor(name).astype(np.float32)).to(torch.bfloat16)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return matrices


def opened(directory, allowed=False):
    """(config, checkpoint, format)."""
    source = open_source(directory)
    config = source.config()
    checkpoint = source.checkpoint(config, allowed)
    return config, checkpoint, source.weight_format(config, checkpoint)


def load(directory, **options):
    config, checkpoint, found = opened(directory, **options)
    return load_model(directory, NumpyOps(), checkpoint=checkpoint, config=config, weight_format=found)


def numbers(linear):
    """The matrix of a Linear."""
    return linear.format.dequantize(linear.weight)


@pytest.mark.parametrize("name", CASES)
def test_the_matrices_are_those_that_the_file_stands_for(name, tmp_path):
    matrices = write(tmp_path, *CASES[name])
    model, place = load(tmp_path), "model.layers.1."
    layer = model.weights.layers[1]
    wanted = {
        "qkv": np.concatenate([matrices[f"{place}self_attn.{part}_proj"] for part in "qkv"]),
        "output": matrices[f"{place}self_attn.o_proj"],
        "gate_up": np.concatenate([matrices[f"{place}mlp.{part}_proj"] for part in ("gate", "up")]),
        "down": matrices[f"{place}mlp.down_proj"],
    }
    found = dict(qkv=layer.attention.qkv, output=layer.attention.output, gate_up=layer.mlp.gate_up, down=layer.mlp.down)
    for part, linear in found.items():
        np.testing.assert_array_equal(numbers(linear), wanted[part], err_msg=part)
        assert linear.format.is_plain == (name in DEQUANTISED)
    assert model.weights.lm_head.weight is model.weights.embedding


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_counted_before_they_are_taken(name, tmp_path):
    write(tmp_path, *CASES[name])
    config, checkpoint, found = opened(tmp_path)
    counted = layout_of(config, weight_format=found).weight_bytes(4)
    weights = load(tmp_path).weights
    arrays = [weights.embedding, weights.final_norm.weight]
    for layer in weights.layers:
        arrays += [layer.attention.norm.weight, layer.mlp.norm.weight]
        for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
            arrays += [linear.weight] if linear.format.is_plain else [one for one in linear.weight if one is not None]
    held = sum(one.nbytes for one in arrays)
    assert abs(counted / held - 1) < 0.01  # the blocks of q, k and v are counted as if they were one module's


@pytest.mark.parametrize("name", ["awq, groups of 32", "gptq, act-order", "compressed-tensors, FP8 blocks", "bitsandbytes, nf4, double"])
def test_a_shard_is_a_part_of_the_matrix(name, tmp_path):
    """Two ranks: outputs of gate and up, and inputs of down in whole groups and blocks of 128."""
    write(tmp_path, *CASES[name], intermediate_size=256)
    config, checkpoint, found = opened(tmp_path)
    layout = layout_of(config, weight_format=found)
    reader, mlp = WeightReader(NumpyOps(), checkpoint, layout), layout.model.layers[0].mlp
    whole, parts = numbers(reader.linear(mlp.down)), [numbers(reader.linear(mlp.down, rank, 2)) for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    whole, part = numbers(reader.linear(mlp.gate_up)), numbers(reader.linear(mlp.gate_up, 1, 2))
    np.testing.assert_array_equal(part, np.concatenate([whole[128:256], whole[384:]]))


@pytest.mark.parametrize("name", ["awq, groups of 128", "compressed-tensors, W8A8", "fp8", "bitsandbytes, nf4"])
def test_the_logits_are_those_of_the_matrices(name, tmp_path):
    """Up to what int8 and fp8 lose by quantising activations."""
    matrices = write(tmp_path / "stored", *CASES[name])
    plain = {one: tensor for one, tensor in load_file(tmp_path / "stored" / "model.safetensors").items()}
    plain = {one: tensor for one, tensor in plain.items() if not any(one.startswith(f"{module}.") for module in matrices)}
    plain |= {f"{module}.weight": torch.from_numpy(matrix) for module, matrix in matrices.items()}
    (tmp_path / "plain").mkdir()
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    config = json.loads((tmp_path / "stored" / "config.json").read_text())
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config | {"quantization_config": None}))
    ops, tokens = NumpyOps(), [5, 1, 7, 2, 30]
    ours, exact = logits_of(ops, load(tmp_path / "stored"), tokens), logits_of(ops, load(tmp_path / "plain"), tokens)
    assert np.abs(ours - exact).max() < (1e-4 if "4" in name or "awq" in name else 0.05) * np.abs(exact).max()


def test_modules_that_are_left_as_they_are(tmp_path):
    """By part of a name, by an expression, and because the file has plain weights."""
    config = AWQ | {"group_size": 32, "modules_to_not_convert": ["layers.0.mlp"]}
    write(tmp_path / "awq", config, CASES["awq, groups of 32"][1], ["s.0.mlp"])
    config = w4("group", 32, True) | {"ignore": ["lm_head", "re:.*down_proj"]}
    write(tmp_path / "ct", config, CASES["compressed-tensors, W4A16"][1], ["down_proj"])
    write(tmp_path / "gptq", *CASES["gptq, zeros less one"], ["layers.1"])
    for name, wanted in (("awq", [True, False]), ("ct", [True, True]), ("gptq", [False, True])):
        assert [layer.mlp.down.format.is_plain for layer in load(tmp_path / name).weights.layers] == wanted


def test_a_module_is_quantised_if_the_file_holds_its_codes_whatever_the_list_says(tmp_path):
    """As if the list meant one layer, and its name were also the beginning of another's."""
    config = AWQ | {"group_size": 32, "modules_to_not_convert": ["model.layers.", "lm_head"]}
    write(tmp_path, config, CASES["awq, groups of 32"][1], ["layers.1"])
    assert [layer.mlp.down.format.is_plain for layer in load(tmp_path).weights.layers] == [False, True]


def test_stacked_modules_need_one_format(tmp_path):
    write(tmp_path, w4("group", 32, True) | {"ignore": ["re:.*k_proj"]}, CASES["compressed-tensors, W4A16"][1], ["k_proj"])
    with pytest.raises(UnsupportedModelError, match="q_proj is compressed-tensors int4, model.layers.0.self_attn.k_proj is plain"):
        load(tmp_path)


ODD = {
    "compressed-tensors, W4A16 by channel": CASES["compressed-tensors, W4A16 by channel"],
    "compressed-tensors, W4A16, the last group shorter": CASES["compressed-tensors, W4A16 with zeros"],
    "compressed-tensors, W3A16": CASES["compressed-tensors, W3A16"],
    "bitsandbytes, nf4": CASES["bitsandbytes, nf4"],
    "bitsandbytes, nf4, double": CASES["bitsandbytes, nf4, double"],
}


@pytest.mark.parametrize("name", ODD)
def test_inputs_that_no_word_group_or_block_divides(name, tmp_path):
    """33 and 97 inputs are dequantised, 320 stay as they are."""
    matrices = write(tmp_path, *ODD[name], hidden_size=33, intermediate_size=97, num_attention_heads=5)
    layer = load(tmp_path).weights.layers[1]
    for part, linear in {"mlp.down": layer.mlp.down, "mlp.gate": layer.mlp.gate_up, "self_attn.o": layer.attention.output}.items():
        wanted = matrices[f"model.layers.1.{part}_proj"]
        np.testing.assert_array_equal(numbers(linear)[: len(wanted)], wanted, err_msg=part)
    assert layer.mlp.down.format.is_plain and layer.mlp.gate_up.format.is_plain
    assert layer.attention.output.format.is_plain == (name in DEQUANTISED or "shorter" in name)


def test_inputs_that_gptq_cannot_store(tmp_path):
    write(tmp_path, *CASES["gptq, whole rows"], intermediate_size=97)
    with pytest.raises(CheckpointError, match="down_proj has 97 inputs, and GPTQ stores words of eight"):
        load(tmp_path)


def test_the_most_specific_target_decides(tmp_path):
    """A name before patterns, the first pattern of the alphabet before others, all before the class, in any order of the groups."""
    kinds = {  # bits -> targets
        8: ["Linear"], 3: ["re:.*self_attn.*", "re:nowhere"], 5: ["model.layers.1.self_attn.o_proj"], 6: ["re:.*1.mlp.down_proj"],
    }  # fmt: skip

    def bits(name):
        layer, attention = name.split(".")[2], "self_attn" in name
        return 5 if name in kinds[5] else 3 if attention else 6 if "down" in name and layer == "1" else 8

    matrices = write(tmp_path, w4("group", 64, True), lambda rng, name, *shape: packed(64, True, bits=bits(name))(rng, name, *shape))
    config = json.loads((tmp_path / "config.json").read_text())
    for order in itertools.permutations(kinds):
        groups = {}
        for number, one in enumerate(order):
            group = w4("group", 64, True, one)["config_groups"]["group_0"]
            groups[f"group_{number}"] = group | {"targets": kinds[one]}
        groups["group_9"] = groups[f"group_{order.index(8)}"] | {"targets": ["re:.*self_attn.*q_proj.*"]}  # later in the alphabet
        config["quantization_config"]["config_groups"] = groups
        (tmp_path / "config.json").write_text(json.dumps(config))
        decided = opened(tmp_path)[2].chosen
        assert {name: form.stored.bits for name, form in decided.items()} == {name: bits(name) for name in matrices}
    np.testing.assert_array_equal(numbers(load(tmp_path).weights.layers[1].mlp.down), matrices["model.layers.1.mlp.down_proj"])


def changed(config, **values):
    """The configuration with some arguments of the weights changed."""
    copy = json.loads(json.dumps(config))
    copy["config_groups"]["group_0"]["weights"] |= values
    return copy


STATIC = json.loads(json.dumps(w8("float", "tensor")))
STATIC["config_groups"]["group_0"]["input_activations"] |= {"dynamic": False, "strategy": "tensor"}
REFUSED = [
    ({"quant_method": "quip"}, "quant_method 'quip'; minllm reads awq, bitsandbytes, compressed-tensors, fp8, gptq"),
    ({"bits": 4}, "quant_method ''"),
    (AWQ | {"group_size": 32, "bits": 3}, "AWQ with bits 3"),
    (AWQ | {"group_size": 32, "version": "gemv"}, "version 'gemv'"),
    (AWQ | {"group_size": 16}, "group_size 16"),
    (GPTQ | {"group_size": 32, "bits": 3}, "GPTQ with bits 3"),
    (GPTQ | {"group_size": 32, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    (GPTQ | {"group_size": 32, "dynamic": {"-:.*down.*": {}}}, "and dynamic"),
    (changed(w4("group", 32, True), num_bits=9), "weights of 9 bits"),
    (changed(w4("group", 32, True), group_size=None), "int, group, group_size None"),
    (w4("group", 32, True) | {"format": "marlin-24"}, "in the format 'marlin-24'"),
    (changed(w4("group", 32, True), actorder="group"), "actorder 'group'"),
    (changed(w8("int", "channel"), symmetric=False), "symmetric False"),
    (changed(w8("float", "channel"), num_bits=4), "weights of 4 bits .float"),
    (changed(BLOCKS, block_structure=[64, 64]), "float, block"),
    (STATIC, "input_activations .*'dynamic': False"),
    (w4("group", 32, True) | {"kv_cache_scheme": {"num_bits": 8}}, "sets kv_cache_scheme"),
    (w4("group", 32, True) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sets sparsity_config"),
    ({"quant_method": "fp8"}, "weight_block_size None"),
    ({"quant_method": "fp8", "weight_block_size": [32, 32]}, r"weight_block_size \[32, 32\]"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, "scale_fmt 'ue8m0'"),
    (BNB | {"load_in_4bit": False, "load_in_8bit": True}, "load_in_4bit False"),
    (BNB | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage 'bfloat16'"),
]


@pytest.mark.parametrize("quantization, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_understood_is_refused_by_name(quantization, message, tmp_path):
    write(tmp_path, quantization, CASES["compressed-tensors, W4A16"][1])
    with pytest.raises(UnsupportedModelError, match=message):
        opened(tmp_path)


DAMAGED = {
    "awq, groups of 32": ["self_attn.q_proj.scales", "mlp.up_proj.qzeros"],
    "gptq, zeros less one": ["self_attn.q_proj.scales", "mlp.up_proj.qzeros", "mlp.down_proj.g_idx"],
    "compressed-tensors, W4A16 with zeros": ["self_attn.q_proj.weight_scale", "self_attn.k_proj.weight_zero_point"],
    "compressed-tensors, FP8": ["mlp.down_proj.weight_scale"],
    "fp8": ["mlp.down_proj.weight_scale_inv"],
    "bitsandbytes, nf4, double": ["mlp.down_proj.weight.absmax", "mlp.up_proj.weight.nested_absmax"],
}


@pytest.mark.parametrize("name, missing", [(name, one) for name, several in DAMAGED.items() for one in several])
def test_a_tensor_that_is_missing_is_named(name, missing, tmp_path):
    write(tmp_path, *CASES[name])
    change(tmp_path, f"model.layers.1.{missing}", None)
    with pytest.raises(CheckpointError, match=f"lacks .*model.layers.1.{missing}"):
        load(tmp_path)


def change(directory, name, tensor):
    """Replace a tensor of the file, or remove it."""
    tensors = load_file(directory / "model.safetensors")
    assert name in tensors
    tensors.pop(name) if tensor is None else tensors.update({name: tensor})
    save_file(tensors, directory / "model.safetensors")


SCALES = {"awq, groups of 32": "scales", "compressed-tensors, FP8": "weight_scale", "fp8": "weight_scale_inv"}


@pytest.mark.parametrize("name, scales", SCALES.items())
def test_scales_that_are_not_finite_are_refused(name, scales, tmp_path):
    """Also if such weights are allowed."""
    write(tmp_path, *CASES[name])
    tensor = f"model.layers.1.mlp.down_proj.{scales}"
    damaged = load_file(tmp_path / "model.safetensors")[tensor]
    damaged.view(-1)[0] = float("nan")
    change(tmp_path, tensor, damaged)
    for allowed in (False, True):
        with pytest.raises(CheckpointError, match="down_proj.*holds .*NaN or infinit"):
            load(tmp_path, allowed=allowed)


@pytest.mark.parametrize("name, scales", SCALES.items())
def test_a_wrong_scale_of_the_last_layer_is_found_before_any_weight_is_placed(name, scales, tmp_path, monkeypatch):
    write(tmp_path, *CASES[name])
    tensor = f"model.layers.{CONFIG['num_hidden_layers'] - 1}.mlp.down_proj.{scales}"
    damaged = load_file(tmp_path / "model.safetensors")[tensor]
    damaged.view(-1)[-1] = float("inf")
    change(tmp_path, tensor, damaged)
    monkeypatch.setattr(NumpyOps, "array", lambda self, values: pytest.fail("a weight was placed"))
    with pytest.raises(CheckpointError, match=f"tensor '{tensor}' holds a scale that is NaN or infinite"):
        load(tmp_path, allowed=True)


def test_shapes_and_dtypes_that_disagree(tmp_path):
    write(tmp_path, *CASES["awq, groups of 32"])
    name = "model.layers.0.self_attn.o_proj.qweight"
    words = load_file(tmp_path / "model.safetensors")[name]
    change(tmp_path, name, words[:, :-1].contiguous())
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' has shape \[320, 31\], and config.json makes it \[320, 32\]"):
        load(tmp_path)
    change(tmp_path, name, words.float())
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is float32; its format stores int32"):
        load(tmp_path)
    write(tmp_path, AWQ | {"group_size": 128}, CASES["awq, groups of 32"][1], num_attention_heads=5)
    with pytest.raises(CheckpointError, match="o_proj has 320 inputs, which groups of 128 do not divide"):
        load(tmp_path)


@pytest.mark.parametrize(("part", "axes"), [("g_idx", 1), ("qweight", 2), ("qzeros", 2)])
def test_tensors_of_gptq_that_decide_its_version_and_order(part, axes, tmp_path):
    """They are read before their shapes are compared with config.json."""
    write(tmp_path, *CASES["gptq, zeros less one"])
    name = f"model.layers.0.mlp.down_proj.{part}"
    words = load_file(tmp_path / "model.safetensors")[name]
    for damaged in (words.reshape(-1)[0].clone(), words[:0].clone()):
        change(tmp_path, name, damaged)
        with pytest.raises(CheckpointError, match=rf"tensor '{name}' has shape \[.*\]; its format stores {axes} axes"):
            load(tmp_path)


def test_nan_among_codes_of_fp8(tmp_path):
    write(tmp_path, *CASES["compressed-tensors, FP8"])
    name = "model.layers.0.mlp.down_proj.weight"
    codes = load_file(tmp_path / "model.safetensors")[name].view(torch.uint8)
    codes[3, 5] = 255
    change(tmp_path, name, codes.view(torch.float8_e4m3fn))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' holds NaN"):
        load(tmp_path)


def test_bitsandbytes_states_are_checked(tmp_path):
    write(tmp_path, *CASES["bitsandbytes, nf4"])
    name = "model.layers.0.mlp.down_proj.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(load_file(tmp_path / "model.safetensors")[name].numpy()))
    for wrong, message in (({"blocksize": 128}, "minllm reads"), ({"shape": [192, 256]}, "minllm reads"), ({"quant_type": "fp4"}, "reads")):
        change(tmp_path, name, torch.frombuffer(bytearray(json.dumps(state | wrong).encode()), dtype=torch.uint8))
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_an_option_that_contradicts_the_file(tmp_path):
    write(tmp_path, *CASES["awq, groups of 32"])
    (tmp_path / "tokenizer.json").write_bytes((open_source_of_bundled() / "tokenizer.json").read_bytes())
    with pytest.raises(InvalidOptionError, match=r"is stored quantised \(awq\), which quantization='int8' contradicts"):
        LLM(tmp_path, device="cpu", quantization="int8")


def open_source_of_bundled():
    from minllm.models.source import bundled_model

    return bundled_model()


def test_words_are_packed_as_they_are_unpacked():
    codes = np.random.default_rng(0).integers(0, 16, (5, 12)).astype(np.uint8)
    for axis in (0, 1):  # 5 and 12 codes fill whole words up with zeros
        np.testing.assert_array_equal(np.take(unpack_words(pack_words(codes, axis), axis), range(codes.shape[axis]), axis), codes)
