"""RMSNorm and LayerNorm beside what tests/kernels/test_launches.py checks: against torch, and the mistakes of callers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.catalogue import normalization
from minllm.errors import KernelArgumentError
from minllm.kernels.normalization import row
from minllm.kernels.normalization.layer_norm import layer_norm, layer_norm_reference
from minllm.kernels.normalization.rms_norm import rms_norm, rms_norm_reference
from tests.kernels.guarded import BFLOAT16, FLOAT32, random
from tests.kernels.launches import check
from tests.kernels.normalization.oracles import layer_norm_of


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("hidden", [264, 512])
def test_a_thread_may_hold_several_vectors(hidden, dtype, device, monkeypatch):
    monkeypatch.setattr(row, "THREADS", 32)
    for norm in (normalization.rms_norm, normalization.layer_norm):
        check(norm(1, hidden, dtype), device)


@pytest.mark.parametrize("hidden", [255, 264, 2048])
@pytest.mark.parametrize("place", [0, 100, -1])
def test_one_number_far_from_all_others(place, hidden, device):
    x, ones = random((1, hidden), FLOAT32, 0), np.ones(hidden, FLOAT32)
    x[0, place] = -3e4  # the spread is nearly all its own: a sum of squares about it, or about any other number, would cancel
    out = device.array(np.full_like(x, np.nan))
    layer_norm(device.array(x), device.array(ones), None, out, 1e-5)
    np.testing.assert_allclose(device.host(out), layer_norm_of(x, ones, 1e-5), rtol=3e-6, atol=1e-6)


def test_a_row_is_spread_over_whole_warps():
    x = np.zeros((1, 4096), BFLOAT16)
    assert row.row_in_registers(4096, x) == (512, 1)
    assert row.row_in_registers(8, x) == (32, 1)
    assert row.row_in_registers(16384, x) == (1024, 2)
    assert row.row_in_registers(8200, x) == (544, 2)
    assert row.row_in_registers(16392, x) is None  # would not fit the registers
    assert row.row_in_registers(4095, x) is None  # not whole vectors
    assert row.row_in_registers(4096, x.reshape(-1)[1:]) is None  # not aligned
    assert row.row_in_registers(16384, np.zeros(1, np.float32)) == (1024, 4)


def test_references_agree_with_torch():
    x, weight, bias = random((5, 33), np.float32, 0), random(33, np.float32, 1), random(33, np.float32, 2)
    expected = torch.nn.functional.rms_norm(torch.tensor(x), (33,), torch.tensor(weight), 1e-6).numpy()
    np.testing.assert_allclose(rms_norm_reference(x, weight, 1e-6)[0], expected, rtol=2e-6, atol=1e-6)
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (33,), torch.tensor(weight), torch.tensor(bias), 1e-6).numpy()
    np.testing.assert_allclose(layer_norm_reference(x, weight, bias, 1e-6)[0], expected, rtol=2e-6, atol=1e-6)


def test_float64_stays_float64():
    x = random((2, 9), np.float64, 0)
    assert rms_norm_reference(x, np.ones(9), 1e-6)[0].dtype == layer_norm_reference(x, np.ones(9), None, 1e-6)[0].dtype == np.float64


@pytest.mark.parametrize("hidden", [7, 16])
def test_the_output_may_be_the_input(hidden, device):
    x, weight = random((2, hidden), np.float32, 0), random(hidden, np.float32, 1)
    in_place = x.copy()
    rms_norm(in_place, weight, in_place, 1e-5)
    np.testing.assert_allclose(in_place, rms_norm_reference(x, weight, 1e-5)[0], rtol=1e-5, atol=1e-6)
    in_place = x.copy()
    layer_norm(in_place, weight, None, in_place, 1e-5)
    np.testing.assert_allclose(in_place, layer_norm_reference(x, weight, None, 1e-5)[0], rtol=1e-5, atol=1e-6)


def test_no_tokens_is_nothing_to_do():
    empty = np.zeros((0, 8), np.float32)
    rms_norm(empty, np.ones(8, np.float32), empty, 1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_a_scaled_row_has_the_same_norm(hidden, seed, scale):
    x, ones = random((1, hidden), np.float64, seed) + 2, np.ones(hidden)
    np.testing.assert_allclose(rms_norm_reference(x * scale, ones, 0.0)[0], rms_norm_reference(x, ones, 0.0)[0], rtol=1e-12)
    assert np.isclose((rms_norm_reference(x, ones, 0.0)[0] ** 2).mean(), 1)


X, WEIGHT = np.zeros((2, 8), np.float32), np.ones(8, np.float32)
MISTAKES = {
    "weight of another length": (dict(weight=np.ones(7, np.float32)), r"weight is float32 \[7\]; its shape must be \[hidden=8\]"),
    "weight of another dtype": (dict(weight=np.ones(8, np.float16)), r"weight is float16 \[8\]; its dtype must be float32"),
    "float64": (dict(x=np.zeros((2, 8))), "x is float64 .* must be float32 or float16 or bfloat16"),
    "one axis": (dict(x=np.zeros(8, np.float32)), r"x is float32 \[8\]; its shape must be \[tokens, hidden\]"),
    "fewer outputs": (dict(out=np.zeros((1, 8), np.float32)), r"out is float32 \[1, 8\]; its shape must be \[tokens=2, hidden=8\]"),
    "another residual": (dict(residual=np.zeros((2, 9), np.float32)), r"residual is float32 \[2, 9\]; its shape must be"),
    "strides": (dict(x=np.zeros((2, 16), np.float32)[:, ::2]), "x is float32 .* C-contiguous"),
}


@pytest.mark.parametrize("change, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        rms_norm(**dict(x=X, weight=WEIGHT, out=X.copy(), epsilon=1e-5) | change)
    with pytest.raises(KernelArgumentError, match=message):
        layer_norm(**dict(x=X, weight=WEIGHT, bias=WEIGHT, out=X.copy(), epsilon=1e-5) | change)
    with pytest.raises(KernelArgumentError, match="bias is float32"):
        layer_norm(X, WEIGHT, np.ones(9, np.float32), X.copy(), 1e-5)
