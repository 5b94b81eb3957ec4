"""W8A8 and W4A16 on Hopper's tensor cores: choices, what is refused, and rows quantised by the preceding kernel."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.activation.silu_quantized import silu_and_multiply_quantized
from minllm.kernels.matmul.quantized import fp8_block_wgmma, tensor_core
from minllm.kernels.matmul.quantized.mixed_input import gemm
from minllm.kernels.matmul.quantized.mixed_input import tiling as mixed_input_tiling
from minllm.kernels.matmul.quantized.mixed_input.gemm import make_gemm
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling, choose_tiling
from minllm.kernels.matmul.quantized.row_groups import RowGroups
from minllm.kernels.matmul.quantized.rows import QuantizedRows
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.quantization.int4 import INT4, Int4Weight
from minllm.kernels.quantization.int8 import INT8, Int8Weight
from minllm.kernels.quantization.int8_groups import INT8_GROUPS, Int8GroupWeight
from minllm.kernels.quantization.nf4 import NF4
from minllm.ops.batch import NormWeights
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import HOPPER
from minllm.weights import quantized_kernels
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.linear import Linear
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, random

int4_gemm, nf4_gemm, int8_group_gemm = map(make_gemm, (INT4, NF4, INT8_GROUPS))
PRODUCTS = {kind: tensor_core.make_gemm(run, INT8) for kind, run in (("wgmma", tensor_core.run_wgmma), ("flat", tensor_core.run_flat))}


def test_what_fp8_in_blocks_refuses():
    whole, stacked = (WEIGHT_FORMATS["fp8_block"].encode(random((n, 64), FLOAT32, 0)) for n in (256, 200))
    rows = RowGroups(np.zeros((9, 64), np.uint8), np.zeros((9, 1), FLOAT32))
    with pytest.raises(KernelArgumentError, match="blocks of 128 outputs without a remainder"):
        fp8_block_wgmma.fp8_block_wgmma(rows, stacked, np.zeros((9, 200), BFLOAT16))
    with pytest.raises(KernelArgumentError, match="64, 128 or 192 columns"):
        fp8_block_wgmma.fp8_block_wgmma(rows, whole, np.zeros((9, 256), BFLOAT16), tiling=WgmmaTiling(2, 256, 2))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 40000), st.integers(1, 500), st.booleans(), st.sampled_from([(36, 0), (68, 0), (32, 1 << 15)]))
def test_every_number_of_rows_has_a_tiling_for_mixed_input(m, n, groups, gated, sizes):
    tiling = choose_tiling(m, n, 32 * groups, gated, *sizes)
    tiling.check(*sizes)
    assert tiling.splits <= max(1, -(-groups // 2) // 4)  # four steps of two groups each, at least


@pytest.mark.parametrize(
    "m, n, gated, chosen",  # chosen: rows of weight per block, splits, k_groups
    [
        (256, 6144, False, (64, 1, 2)), (256, 4096, False, (64, 2, 2)), (131, 2048, True, (64, 2, 2)), (256, 1024, False, (64, 4, 2)),
        (256, 28672, False, (128, 1, 1)), (128, 6144, False, (64, 1, 2)), (256, 64, False, (64, 8, 1)),
        (64, 4096, False, (64, 2, 2)), (48, 4096, False, (128, 3, 1)),
    ],
)  # fmt: skip
def test_warpgroups_of_mixed_input_divide_k_before_blocks_do(m, n, gated, chosen, monkeypatch):
    tiling = choose_tiling(m, n, 4096, gated, 36)
    assert (tiling.rows, tiling.splits, tiling.k_groups) == chosen
    monkeypatch.setattr(mixed_input_tiling, "DIVIDED_FROM", mixed_input_tiling.MOST_TOKENS + 1)
    undivided = choose_tiling(m, n, 4096, gated, 36, copied=False)
    assert undivided == mixed_input_tiling.largest_tiling(m, n, 4096, gated, 36)


@pytest.mark.parametrize(
    "m, n, copied, sizes, chosen",  # sizes: bytes of codes and scales per row, of tables; chosen: stages, batches
    [
        (2048, 4096, True, (36, 0), (4, 1)), (2048, 4096, True, (68, 0), (4, 2)), (256, 28672, True, (36, 33 << 10), (4, 2)),
        (2048, 4096, False, (36, 0), (6, 0)), (64, 28672, True, (36, 0), (8, 0)), (128, 28672, True, (36, 0), (8, 1)),
    ],
)  # fmt: skip
def test_blocks_of_mixed_input_are_persistent_for_many_rows_that_tma_stores(m, n, copied, sizes, chosen):
    tiling = choose_tiling(m, n, 4096, False, *sizes, copied)
    assert (tiling.stages, tiling.batches) == chosen


@pytest.mark.parametrize("m, n, chosen", [(256, 6144, (256, 2, 1)), (256, 4096, (128, 1, 2)), (128, 4096, (128, 2, 2))])
def test_a_table_leaves_too_few_stages_for_two_warpgroups_and_many_tokens(m, n, chosen):
    tiling = choose_tiling(m, n, 4096, False, 36, 33 << 10)
    assert (tiling.tokens, tiling.splits, tiling.k_groups) == chosen


def test_what_mixed_input_refuses(monkeypatch):
    weight = WEIGHT_FORMATS["int4_g128"].encode(random((8, 256), FLOAT32, 0))
    unaligned = WEIGHT_FORMATS["int4_g128"].encode(random((4, 256), FLOAT32, 0))
    x, out = random((2, 256), BFLOAT16, 0), np.empty((2, 8), BFLOAT16)
    wide = weight._replace(scales=weight.scales.astype(np.float64))
    for refused in ((random((2, 256), FLOAT32, 0), weight), (x, unaligned), (x, wide), (x, weight._replace(scales=weight.scales.T))):
        with pytest.raises(KernelArgumentError, match="float16 or bfloat16, groups of 32 or multiples of 64, and rows of whole 16 bytes"):
            int4_gemm(*refused, out)
    for tiling, words in (
        ((3, 8, 2), "1 or 2 warpgroups"), ((1, 8, 2, 5), "8 splits"), ((1, 8, 2, 8), "4 steps of 64"),
        ((1, 12, 2), "8, 16, ... or 256 tokens"), ((2, 256, 7), "bytes of shared"),
        ((1, 8, 4, 1, 2), "k_groups are 1, or 2 of 2 warpgroups"), ((2, 8, 5, 1, 2), "2 k_groups need a multiple of 2 stages"),
        ((2, 8, 2, 1, 2), "at least two stages each"), ((2, 8, 2, 1, 1, 1, 1), "batches of a multiple of 16 tokens"),
        ((2, 16, 4, 2, 1, 1, 1), "K undivided"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            int4_gemm(x, weight, out, tiling=MixedInputTiling(*tiling))
    with pytest.raises(KernelArgumentError, match="TMA stores outputs of x's dtype, bfloat16, in rows that begin on multiples of 16 bytes"):
        int4_gemm(x, weight, out.astype(np.float32), tiling=MixedInputTiling(1, 16, 2, batches=1))
    with_table = WEIGHT_FORMATS["nf4"].encode(random((16, 256), FLOAT32, 0))
    with pytest.raises(KernelArgumentError, match="bytes of shared"):
        nf4_gemm(x, with_table, np.empty((2, 16), BFLOAT16), tiling=MixedInputTiling(2, 256, 6))
    monkeypatch.setattr(gemm, "has_wgmma", lambda x: False)
    with pytest.raises(KernelArgumentError, match="compute capability 9.0: take the GEMV"):
        int4_gemm(x, weight, out)


OF_GROUPS = Int8GroupWeight(np.zeros((16, 256), np.int8), np.ones((2, 16), FLOAT16))


@pytest.mark.parametrize("launch, weight", [
    (int4_gemm, WEIGHT_FORMATS["int4_g128"].encode(np.ones((16, 256), FLOAT32))), (int8_group_gemm, OF_GROUPS),
    (nf4_gemm, WEIGHT_FORMATS["nf4"].encode(np.ones((16, 256), FLOAT32))),
])  # fmt: skip
def test_a_weight_with_rows_of_another_length_is_refused(launch, weight):
    """Groups of twice their size would fit the scales, and missing codes would count as zeros."""
    with pytest.raises(KernelArgumentError, match="codes is .* its shape must be"):
        launch(random((2, 512), BFLOAT16, 0), weight, np.empty((2, 16), BFLOAT16))


def int8_arrays(m, n, k):
    """Return rows, a weight and out, all zeros."""
    rows = QuantizedRows(np.zeros((m, k), np.uint8), np.zeros(m, FLOAT32))
    return rows, Int8Weight(np.zeros((n, k), np.int8), np.zeros(n, FLOAT32)), np.zeros((m, n), BFLOAT16)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_mistakes_are_explained(kind, monkeypatch):
    rows, weight, out = int8_arrays(4, 16, 32)
    short_rows, short_weight, _ = int8_arrays(4, 16, 24)
    for arguments, words in [
        ((short_rows, short_weight, out), "rows of 24 codes do not begin on multiples of 16 bytes"),
        ((rows, short_weight, out), r"codes is int8 \[16, 24\].*K=32"),
        ((rows._replace(scales=rows.scales[:3]), weight, out), "x_scales is .*M=4"),
        ((rows, weight._replace(scales=np.zeros(16)), out), "scales is float64"),
        ((rows, weight, out[:, :8]), r"codes is int8 \[16, 32\].*N=8"),
        ((rows, weight, out, np.zeros(3, BFLOAT16)), "bias is .*N=16"),
    ]:
        with pytest.raises(KernelArgumentError, match=words):
            PRODUCTS[kind](*arguments)
    PRODUCTS[kind](*int8_arrays(0, 16, 32))  # nothing to do
    monkeypatch.setattr(tensor_core, "has_wgmma", lambda array: False)
    with pytest.raises(KernelArgumentError, match="compute capability 9.0: widen"):
        PRODUCTS[kind](rows, weight, out)


def test_flat_refuses_many_rows():
    with pytest.raises(KernelArgumentError, match="up to 256 rows of x, not 257"):
        PRODUCTS["flat"](*int8_arrays(257, 16, 32))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 256), st.integers(1, 40000), st.integers(8, 10000), st.booleans())
def test_every_few_rows_have_a_flat_tiling(m, n, pairs, gated):
    tokens = tensor_core.padded_rows(m)
    tiling = tensor_core.choose_flat_tiling(tokens, n, pairs, gated)
    tiling.check(tensor_core.padded_rows(m, tiling.sharers))


def test_what_silu_that_quantises_refuses():
    with pytest.raises(KernelArgumentError, match="rows of 9, which are no gate"):
        silu_and_multiply_quantized(np.zeros((2, 9), BFLOAT16), np.empty)


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_feed_forward_without_a_gated_product_quantises_in_silu(name, monkeypatch):
    """Without wgmma, or with a bias, no kernel quantises between SiLU and down."""
    found, hidden, inner = WEIGHT_FORMATS[name], 64, 48
    gate_up, down = (found.encode(random(shape, FLOAT32, seed, 0.1)) for shape, seed in (((2 * inner, hidden), 1), ((hidden, inner), 2)))
    bias = random((2 * inner,), BFLOAT16, 3)
    layers = Linear(gate_up, bias, found, (2 * inner, hidden)), Linear(down, None, found, (hidden, inner))
    ops, x, quantised = CudaOps("bfloat16", simulated=True), random((3, hidden), BFLOAT16, 4), []
    counting = dict(found.kernels.activations)["gemv"]
    monkeypatch.setitem(found.kernels.activations, "gemv", lambda x, *rest: quantised.append(x.shape) or counting(x, *rest))
    out = ops.gated_mlp(x, *layers, activation="silu")
    assert quantised == [(3, hidden)]
    both = found.linear(x.astype(FLOAT32), gate_up).astype(np.float64) + bias
    activated = both[:, :inner] / (1 + np.exp(-both[:, :inner])) * both[:, inner:]
    expected = found.linear(activated.astype(FLOAT32), down)
    np.testing.assert_allclose(out.astype(FLOAT32), expected, rtol=0.05, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_layer_multiplies_what_the_norm_has_quantised(name, monkeypatch):
    """Norm, gate, up and down agree with the CPU engine, and no kernel quantises after the norm.

    The flat GEMMs of codes are chosen by name.
    """
    found, hidden, inner = WEIGHT_FORMATS[name], 64, 48
    gate_up, down = (found.encode(random(shape, FLOAT32, seed, 0.1)) for shape, seed in (((2 * inner, hidden), 1), ((hidden, inner), 2)))
    layers = Linear(gate_up, None, found, (2 * inner, hidden)), Linear(down, None, found, (hidden, inner))
    ops, norm = CudaOps("bfloat16", {"matmul": "flat"}, simulated=True), NormWeights("rms_norm", random((hidden,), BFLOAT16, 3), None, 1e-5)
    quantised = []
    activations = dict(found.kernels.activations)
    counting = activations["flat"]
    monkeypatch.setitem(found.kernels.activations, "flat", lambda x, *rest: quantised.append(x.shape) or counting(x, *rest))
    x, residual = random((3, hidden), BFLOAT16, 4), random((3, hidden), BFLOAT16, 5)
    out, _ = ops.normed_gated_mlp(x, residual.copy(), norm, *layers, activation="silu")
    assert quantised == [(3, inner)]  # the output of SiLU and multiply, and not that of the norm
    normalised, _ = rms_norm_reference(x, norm.weight, 1e-5, residual)
    both = found.linear(normalised.astype(FLOAT32), gate_up).astype(np.float64)
    activated = both[:, :inner] / (1 + np.exp(-both[:, :inner])) * both[:, inner:]
    expected = found.linear(activated.astype(BFLOAT16).astype(FLOAT32), down)
    np.testing.assert_allclose(out.astype(FLOAT32), expected, rtol=0.05, atol=0.02 * np.abs(expected).max())


def test_hopper_multiplies_codes_as_they_are(monkeypatch):
    class Codes:
        shape, dtype, pointer = (64, 32), np.dtype(np.int8), 256

    class Weight:
        codes = Codes()

    def chosen(rows):
        return quantized_kernels.KERNELS[INT8.name].choose(np.zeros((rows, 32), BFLOAT16), Weight())

    class Device:
        compute_capability = (9, 0)

    monkeypatch.setattr(quantized_kernels, "current_device", Device)
    assert [chosen(rows) for rows in (1, 16, 64, 65, 2048)] == ["flat", "flat", "flat", "wgmma", "wgmma"]
    Codes.shape = (64, 24)
    assert chosen(16) == "widened"  # TMA cannot load these rows
    Codes.shape, Device.compute_capability = (64, 32), (8, 9)
    assert (chosen(8), chosen(9)) == ("gemv", "widened")


class Array:
    """The attributes of a GPU array that a choice of variant reads."""

    def __init__(self, *shape, dtype=np.uint8):
        self.shape, self.dtype, self.pointer = shape, np.dtype(dtype), 256


def on_gpu(monkeypatch, capability):
    """Make variants be chosen as for a GPU of this compute capability."""
    monkeypatch.setattr(quantized_kernels, "current_device", lambda: SimpleNamespace(compute_capability=capability))
    monkeypatch.setattr(tensor_core_gemv, "capability_here", lambda: capability)
    for launchers in (tensor_core_gemv, gemm):
        monkeypatch.setattr(launchers, "has_wgmma", lambda array: capability == HOPPER)


def test_int4_by_rows_and_groups(monkeypatch):
    def chosen(outputs, groups, inputs=1024, minimums=None, dtype=BFLOAT16):
        codes, scales = Array(outputs, inputs // 2), Array(groups, outputs, dtype=np.float16)
        weight = Int4Weight(codes, scales, None, minimums and Array(groups, outputs, dtype=minimums))
        return [
            quantized_kernels.KERNELS[INT4.name].choose(Array(rows, inputs, dtype=dtype), weight) for rows in (1, 2, 8, 9, 16, 17, 64, 65)
        ]

    on_gpu(monkeypatch, HOPPER)
    elsewhere = ["gemv"] * 3 + ["widened"] * 5
    assert chosen(4096, 8) == chosen(28672, 8) == chosen(4096, 112, 14336) == ["tensor_core_gemv"] * 5 + ["wgmma"] * 3
    assert chosen(4096, 32) == chosen(4096, 16) == chosen(4096, 32, minimums=np.float16) == ["tensor_core_gemv"] * 3 + ["wgmma"] * 5
    assert chosen(4096, 32, minimums=np.float32) == ["gemv"] + ["wgmma"] * 7  # minimums not of the scales' dtype: two rows or more
    assert chosen(4096, 34, 1088) == ["gemv"] + ["wgmma"] * 7  # eight steps of 128 inputs and a half
    assert chosen(4096, 64) == chosen(4096, 8, dtype=FLOAT32) == elsewhere  # groups of 16
    on_gpu(monkeypatch, (8, 9))
    assert chosen(4096, 8) == ["tensor_core_gemv", *elsewhere[1:]]


def test_nf4_by_rows(monkeypatch):
    def chosen(inputs=4096, dtype=BFLOAT16):
        weight = SimpleNamespace(codes=Array(4096, inputs // 2), absmax=Array(inputs // 64, 4096))
        return [quantized_kernels.KERNELS[NF4.name].choose(Array(rows, inputs, dtype=dtype), weight) for rows in (1, 2, 4, 8, 9, 16, 17)]

    on_gpu(monkeypatch, HOPPER)
    elsewhere = ["gemv"] * 4 + ["widened"] * 3
    assert chosen() == ["tensor_core_gemv"] * 4 + ["wgmma"] * 3
    assert chosen(inputs=4160) == ["gemv"] + ["wgmma"] * 6
    assert chosen(dtype=FLOAT32) == elsewhere
    on_gpu(monkeypatch, (8, 9))
    assert chosen() == ["tensor_core_gemv", *elsewhere[1:]]


@pytest.mark.parametrize("name", ["int4_g128", "nf4"])
def test_gate_and_up_of_few_rows_are_one_kernel_unless_out_is_float32(name):
    kernels, x = WEIGHT_FORMATS[name].kernels, random((2, 256), BFLOAT16, 0)
    weight = WEIGHT_FORMATS[name].encode(random((4, 256), FLOAT32, 1))
    assert kernels.gated("tensor_core_gemv", x, weight, BFLOAT16).__name__ == "gated_tensor_core_gemv"
    assert kernels.gated("tensor_core_gemv", x, weight, FLOAT32) is None
    assert kernels.gated("gemv", x, weight, BFLOAT16) is None


def test_fp8_in_blocks_on_hopper_by_rows(monkeypatch):
    class Array:
        def __init__(self, shape):
            self.shape, self.dtype, self.pointer = shape, np.dtype(np.uint8), 256

    class Weight:
        def __init__(self, outputs):
            self.codes, self.scales = Array((outputs, 512)), Array((-(-outputs // 128), 4))

    class Device:
        compute_capability = (9, 0)

    def chosen(outputs):
        return [quantized_kernels.choose_fp8_block(np.zeros((rows, 512), BFLOAT16), Weight(outputs)) for rows in (1, 2, 9, 2048)]

    monkeypatch.setattr(quantized_kernels, "current_device", Device)
    assert chosen(256) == ["gemv", "wgmma", "wgmma", "wgmma"]
    assert chosen(200) == ["gemv", "gemv", "widened", "widened"]  # the last block has fewer outputs
    Device.compute_capability = (8, 9)
    assert chosen(256) == ["gemv", "gemv", "widened", "widened"]
