"""GEMVs and GEMMs with quantised weights in the simulator, checked against float64 and the CPU engine."""

import json
from pathlib import Path

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.ladder import int4_naive
from minllm.kernels.matmul.quantized import group_gemv, int4, int8
from minllm.kernels.matmul.quantized.rows import QuantizedRows
from minllm.kernels.quantization.fp8 import E4M3
from minllm.kernels.quantization.fp8_block import quantize_row_groups as quantize_row_groups_reference
from minllm.kernels.quantization.int4 import Int4Weight
from minllm.kernels.quantization.int8_groups import Int8GroupWeight
from minllm.models.config_reader import read_model_config
from minllm.models.decoder import forward
from minllm.models.model import load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.linear import Linear
from minllm.weights.quantized import Int4Format, Int8GroupFormat
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT16, FLOAT32, random
from tests.models.batches import PagedSequences
from tests.ops.small_models import CONFIGS

NAMES = quantizations()
NARROW = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
UNIT = {FLOAT32: 2.0**-16, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}


def numbers_of_row_groups(x):
    """Return x quantised in groups of 128 and dequantised, as float64."""
    codes, scales = quantize_row_groups_reference(x)
    return codes.view(E4M3).astype(np.float64) * np.repeat(scales, 128, axis=1)[:, : x.shape[1]]


STORED = {  # formats that occur only in checkpoints, each with a weight [N, K] of random codes
    "minimums": lambda rng, n, k: (
        Int4Format("q4_1", 0.5, group_size=32, has_minimums=True),
        Int4Weight(codes(rng, n, k // 2), scales(rng, k // 32, n), None, -8 * scales(rng, k // 32, n)),
    ),
    "whole rows": lambda rng, n, k: (Int4Format("rows", 0.5), Int4Weight(codes(rng, n, k // 2), scales(rng, 1, n))),
    "bfloat16 scales": lambda rng, n, k: (
        Int4Format("bf16", 0.5, group_size=64, has_zeros=True),
        Int4Weight(codes(rng, n, k // 2), scales(rng, k // 64, n).astype(BFLOAT16), codes(rng, k // 64, n) & 15),
    ),
    "int8 groups": lambda rng, n, k: (
        Int8GroupFormat("q8_0", 1, group_size=32),
        Int8GroupWeight(codes(rng, n, k).view(np.int8), scales(rng, k // 32, n)),
    ),
    "nf4, not nested": lambda rng, n, k: (
        WEIGHT_FORMATS["nf4"],
        WEIGHT_FORMATS["nf4"].encode(rng.normal(size=(n, k)))._replace(absmax=rng.uniform(1, 2, (k // 64, n)).astype(FLOAT32), nested=None),
    ),
}


def codes(rng, *shape):
    return rng.integers(0, 256, shape, np.uint8)


def scales(rng, *shape):
    return rng.uniform(0.01, 0.02, shape).astype(FLOAT16)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.detected("name")
@pytest.mark.covering("name", "rows")
@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("name", STORED)
def test_weights_that_only_checkpoints_store(name, rows):
    k = 128 if rows > 8 else 1152  # 9 rows take the widened matrix; with 1152, some lanes of a GEMV's warp have a second step
    found, weight = STORED[name](np.random.default_rng(0), 5, k)
    x, ops = random((rows, k), FLOAT32, 0), CudaOps("float32", simulated=True)
    out = ops.linear(x, Linear(found.place(ops, weight), None, found, (5, k)))
    expected = x.astype(np.float64) @ found.dequantize(weight).astype(np.float64).T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.detected("name", "rows")
@pytest.mark.covering("name + rows", "rows + dtype")
@pytest.mark.parametrize("rows, dtype", [(1, BFLOAT16), (3, FLOAT16), (2, FLOAT32), (9, BFLOAT16), (9, FLOAT32)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_linear_is_that_of_the_codes(name, dtype, rows):
    """The expected result is in float64, with x quantised if the format does that; 9 rows take the widened matrix."""
    found, k, n = WEIGHT_FORMATS[name], 128 if rows > 8 else 1152, 5  # with 1152, some lanes of a warp have a second step
    x, bias = random((rows, k), dtype, 0), random((n,), dtype, 1)
    weight = found.encode(random((n, k), FLOAT32, 2))
    ops = CudaOps(dtype, simulated=True)
    out = ops.linear(x, Linear(found.place(ops, weight), bias, found, (n, k)))
    exact = x.astype(np.float64)
    if name in ("int8", "fp8"):
        exact = found.dequantize(found.encode(x)).astype(np.float64)
    if name == "fp8_block":
        exact = numbers_of_row_groups(x)
    expected = exact @ found.dequantize(weight).astype(np.float64).T + bias.astype(np.float64)
    assert out.dtype == dtype
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=UNIT[dtype], atol=UNIT[dtype] * np.sqrt(k))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_rows_of_any_length_are_widened(name):
    found, x = WEIGHT_FORMATS[name], random((2, 19), FLOAT32, 0)
    weight, ops = found.encode(random((5, 19), FLOAT32, 1)), CudaOps("float32", simulated=True)
    out = ops.linear(x, Linear(weight, None, found, (5, 19)))
    np.testing.assert_allclose(out, found.linear(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.detected("name")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["int4", "int4_g64_zeros", "minimums", "whole rows"])
def test_int4_byte_by_byte(name, dtype):
    """Rows end inside a warp's bytes; with and without a bias."""
    if name in STORED:
        found, weight = STORED[name](np.random.default_rng(0), 3, 320)
    else:
        found = WEIGHT_FORMATS[name]
        weight = found.encode(random((3, 320), FLOAT32, 2))
    for rows, bias in ((1, None), (4, random((3,), dtype, 1))):
        x, out = random((rows, 320), dtype, 0), np.full((rows, 3), np.nan, np.float32)
        int4_naive.int4_naive(x, weight, out, bias)
        expected = x.astype(np.float64) @ found.dequantize(weight).astype(np.float64).T
        np.testing.assert_allclose(out, expected + (0 if bias is None else bias.astype(np.float64)), rtol=1e-4, atol=1e-3)


GROUPED = {
    "int4": (int4.int4_gemv, int4.dequantize_int4), "int4_naive": (int4_naive.int4_naive,),
    "int8": (group_gemv.int8_group_gemv, group_gemv.dequantize_int8_groups), "nf4": (group_gemv.nf4_gemv, group_gemv.dequantize_nf4),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_scales_of_another_shape_are_refused(name):
    """They are stored by group; a GEMV that took an array by row would read past its end."""
    form = {"int4_naive": "int4", "int8": "int8 groups"}.get(name, name)
    matrix = random((6, 256), FLOAT32, 0)
    weight = STORED[form](np.random.default_rng(0), 6, 256)[1] if form in STORED else WEIGHT_FORMATS[form].encode(matrix)
    field, out = "absmax" if name == "nf4" else "scales", np.empty((1, 6), FLOAT32)
    right = getattr(weight, field)
    for wrong in (right.T.copy(), np.concatenate([right, right[:1]])):  # by row, and with groups that do not divide K
        for launch in GROUPED[name]:
            arguments = (weight._replace(**{field: wrong}), np.empty((6, 256), FLOAT32))
            with pytest.raises(KernelArgumentError, match="N=6|a group has a multiple"):
                launch(*arguments) if "dequantize" in launch.__name__ else launch(random((1, 256), FLOAT32, 0), arguments[0], out)


def test_what_int4_byte_by_byte_refuses():
    weight, out = WEIGHT_FORMATS["int4"].encode(random((4, 256), FLOAT32, 0)), np.empty((1, 4), np.float32)
    with pytest.raises(KernelArgumentError, match="rows of 20; eight codes are packed in a word"):
        int4_naive.int4_naive(np.ones((1, 20), np.float32), weight, out)
    with pytest.raises(KernelArgumentError, match="codes is uint8"):
        int4_naive.int4_naive(np.ones((1, 128), np.float32), weight, out)
    with pytest.raises(KernelArgumentError, match=r"bias is float32 \[3\]; its shape must be \[N=4\]"):
        int4_naive.int4_naive(np.ones((1, 256), np.float32), weight, out, np.ones(3, np.float32))


@pytest.mark.parametrize("gemv", [int4_naive.int4_naive, int4.int4_gemv])
@pytest.mark.parametrize("x", [np.ones((1, 256), np.float64), np.ones(256, np.float32)], ids=["float64", "1 axis"])
def test_rows_of_x_that_int4_refuses(gemv, x):
    weight = WEIGHT_FORMATS["int4"].encode(random((4, 256), FLOAT32, 0))
    with pytest.raises(KernelArgumentError, match="x is float"):
        gemv(x, weight, np.empty((1, 4), np.float32))


def test_no_bias_and_float32_out():
    found, x = WEIGHT_FORMATS["int4_zeros"], random((2, 64), BFLOAT16, 0)
    weight = found.encode(random((3, 64), FLOAT32, 1))
    out = np.full((2, 3), np.nan, np.float32)
    int4.int4_gemv(x, weight, out)
    np.testing.assert_allclose(out, found.linear(x, weight, out_dtype=np.float32), rtol=1e-5, atol=1e-5)


def test_what_a_gemv_refuses():
    weight = WEIGHT_FORMATS["int8"].encode(random((4, 32), FLOAT32, 0))
    rows = QuantizedRows(np.zeros((9, 32), np.uint8), np.zeros(9, np.float32))
    with pytest.raises(KernelArgumentError, match="multiplies up to 8 rows of x, not 9"):
        int8.int8_gemv(rows, weight, np.empty((9, 4), np.float32))
    rows = QuantizedRows(np.zeros((2, 24), np.uint8), np.zeros(2, np.float32))
    with pytest.raises(KernelArgumentError, match="rows of 24; a GEMV over these codes takes multiples of 16"):
        int8.int8_gemv(rows, weight, np.empty((2, 4), np.float32))
    rows = QuantizedRows(np.zeros((2, 48), np.uint8), np.zeros(2, np.float32))
    with pytest.raises(KernelArgumentError, match=r"codes is int8 \[4, 32\]; its shape must be \[N, bytes=48\]"):
        int8.int8_gemv(rows, weight, np.empty((2, 4), np.float32))
    rows = QuantizedRows(np.zeros((2, 32), np.float32), np.zeros(2, np.float32))
    with pytest.raises(KernelArgumentError, match=r"x is float32 \[2, 32\]; its dtype must be uint8 or int8"):
        int8.int8_gemv(rows, weight, np.empty((2, 4), np.float32))


@pytest.mark.results_only
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.covering("rounds_activations")
@pytest.mark.parametrize("name, rounds_activations", [("int4", False), ("int8", True), ("fp8", True), ("fp8_block", True), ("nf4", False)])
def test_a_model_on_kernels_computes_what_it_does_in_numpy(name, rounds_activations, tmp_path):
    """A prompt of 9 tokens takes the widened weights, and a decode step the codes."""
    Path(tmp_path, "config.json").write_text(json.dumps(CONFIGS["llama"] | NARROW))
    config, found = read_model_config(tmp_path), []
    for ops in (NumpyOps(), CudaOps("float32", simulated=True)):
        model = load_model(tmp_path, ops, checkpoint=RandomCheckpoint(config), weight_format=WEIGHT_FORMATS[name])
        sequences = PagedSequences(ops, config, [16], block_size=4)
        chunks = ([5, 1, 7, 2, 3, 3, 8, 30, 4], [3])
        found.append([ops.to_host(forward(ops, model, sequences.append([chunk]), sequences.cache)) for chunk in chunks])
    for ours, theirs in zip(*found, strict=True):
        # A number between two codes may be rounded to either if the sums before it differ by an ulp.
        np.testing.assert_allclose(ours, theirs, atol=(2e-2 if rounds_activations else 1e-4) * np.abs(theirs).max())
