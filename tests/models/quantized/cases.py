"""A quantization_config and a writer for each kind of file."""

import re

from tests.models.quantized import writers

AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}
DYNAMIC = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}


def compressed(weights, inputs=None, **more):
    """compressed-tensors' configuration with one group of modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | more


def w4(strategy, size, symmetric, bits=4):
    return compressed({"num_bits": bits, "type": "int", "strategy": strategy, "group_size": size, "symmetric": symmetric})


def w8(kind, strategy):
    return compressed({"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True}, DYNAMIC | {"type": kind})


BLOCKS = compressed(
    {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128], "symmetric": True},
    {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": True},
)
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
CASES = {
    "awq, groups of 32": (AWQ | {"group_size": 32}, writers.awq(32)),
    "awq, groups of 128": (AWQ | {"group_size": 128}, writers.awq(128)),
    "gptq, zeros less one": (GPTQ | {"group_size": 64}, writers.gptq(64, 1)),
    "gptq, zeros as they are, and named so": (GPTQ | {"group_size": 64, "checkpoint_format": "gptq_v2"}, writers.gptq(64, 0)),
    "gptq, zeros as they are, named wrong": (GPTQ | {"group_size": 64}, writers.gptq(64, 0)),
    "gptq, zeros less one, named wrong": (GPTQ | {"group_size": 32, "checkpoint_format": "gptq_v2"}, writers.gptq(32, 1)),
    "gptq, symmetric, zeros of 7": (GPTQ | {"group_size": 128, "sym": True}, writers.gptq(128, 1, symmetric=True)),
    "gptq, symmetric, zeros of 8": (GPTQ | {"group_size": 128, "sym": True}, writers.gptq(128, 0, symmetric=True)),
    "gptq, whole rows": (GPTQ | {"group_size": -1}, writers.gptq(-1, 1)),
    "gptq, act-order": (GPTQ | {"group_size": 32, "desc_act": True}, writers.gptq(32, 1, act_order=True)),
    "gptq without g_idx": (GPTQ | {"group_size": 32}, writers.gptq(32, 1, with_index=False)),
    "compressed-tensors, W4A16": (w4("group", 32, True), writers.packed(32, True)),
    "compressed-tensors, W4A16 with zeros": (w4("group", 128, False), writers.packed(128, False)),
    "compressed-tensors, W4A16 by channel": (w4("channel", None, True), writers.packed(0, True)),
    "compressed-tensors, W3A16": (w4("group", 32, False, 3), writers.packed(32, False, bits=3)),
    "compressed-tensors, W5A16": (w4("channel", None, True, 5), writers.packed(0, True, bits=5)),
    "compressed-tensors, W6A16": (w4("group", 16, True, 6), writers.packed(16, True, bits=6)),
    "compressed-tensors, W7A16": (w4("group", 96, False, 7), writers.packed(96, False, bits=7)),
    "compressed-tensors, W8A16": (w4("group", 64, False, 8), writers.packed(64, False, bits=8)),
    "compressed-tensors, W4A16 in groups of 16": (w4("group", 16, False), writers.packed(16, False)),
    "compressed-tensors, W8A8": (w8("int", "channel"), writers.rows_of_8_bits("int", True)),
    "compressed-tensors, W8A8 by tensor": (w8("int", "tensor"), writers.rows_of_8_bits("int", False)),
    "compressed-tensors, FP8": (w8("float", "channel"), writers.rows_of_8_bits("float", True)),
    "compressed-tensors, FP8 by tensor": (w8("float", "tensor"), writers.rows_of_8_bits("float", False)),
    "compressed-tensors, FP8 blocks": (BLOCKS, writers.fp8_blocks("weight_scale")),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, writers.fp8_blocks("weight_scale_inv")),
    "bitsandbytes, nf4": (BNB | {"bnb_4bit_quant_type": "nf4"}, writers.bitsandbytes("nf4", False)),
    "bitsandbytes, nf4, double": (
        BNB | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, writers.bitsandbytes("nf4", True),
    ),
    "bitsandbytes, fp4": (BNB | {"bnb_4bit_quant_type": "fp4"}, writers.bitsandbytes("fp4", False)),
}  # fmt: skip
DEQUANTISED = ("gptq, act-order", *(name for name in CASES if "16 in groups" in name or re.search("W[35678]A16", name)))
