"""SiLU-and-multiply and GELU in place and unaligned, and the mistakes of callers; their results: tests/kernels/test_launches.py."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.activation.gelu import gelu, gelu_reference
from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
from tests.kernels.guarded import random


@pytest.mark.parametrize("features", [5, 16])
def test_gelu_in_place(features, device):
    x = random((2, features), np.float32, 0)
    in_place = x.copy()
    gelu(in_place, in_place, "tanh")
    np.testing.assert_allclose(in_place, gelu_reference(x, "tanh"), rtol=1e-5, atol=1e-6)


def test_an_unaligned_row_takes_the_other_kernel(device):
    memory = np.zeros(17, np.float32)
    x = memory[1:].reshape(1, 16)  # whole vectors, but 4 bytes off
    x[:] = random((1, 16), np.float32, 0)
    out = np.full((1, 16), np.nan, np.float32)
    gelu(x, out)
    np.testing.assert_allclose(out, gelu_reference(x), rtol=1e-5, atol=1e-6)


def test_float64_stays_float64():
    x = random((1, 6), np.float64, 0)
    assert gelu_reference(x).dtype == gelu_reference(x, "tanh").dtype == silu_and_multiply_reference(x).dtype == np.float64


def test_mistakes_are_explained():
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(KernelArgumentError, match=r"gate_up is float32 \[2, 8\]; its shape must be \[tokens=2, gate_and_up=16\]"):
        silu_and_multiply(x, x)
    with pytest.raises(KernelArgumentError, match="gate_up is float32 .* dtype must be float16"):
        silu_and_multiply(x, np.zeros((2, 4), np.float16))
    with pytest.raises(KernelArgumentError, match="out is float64"):
        silu_and_multiply(x, np.zeros((2, 4)))
    for call in (lambda: gelu(x, x, "sigmoid"), lambda: gelu_reference(x, "sigmoid")):
        with pytest.raises(KernelArgumentError, match='approximate is \'sigmoid\'; it must be "none".* or "tanh"'):
            call()
    with pytest.raises(KernelArgumentError, match=r"out is float32 \[2, 7\]"):
        gelu(x, np.zeros((2, 7), np.float32))
