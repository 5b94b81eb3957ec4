"""Flat GEMMs with residual, deferred norm, gate, rotation and cache write, in the simulator with all its detectors."""

import pytest

from tests.kernels.guarded import BFLOAT16, FLOAT16
from tests.kernels.matmul.fused_cases import QKV_SHAPES, SHAPES, check_gated, check_linear_add, check_qkv


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_residual_and_the_beginning_of_the_norm(shape, device):
    check_linear_add(*shape, FLOAT16 if shape[0] == 9 else BFLOAT16, shape[0] == 3, device)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gate_finishes_the_norm(shape, device):
    check_gated(*shape, FLOAT16 if shape[0] == 16 else BFLOAT16, device)


@pytest.mark.parametrize("shape", QKV_SHAPES, ids=str)
def test_queries_keys_and_values(shape, device):
    check_qkv(*shape, FLOAT16 if shape[0] == 17 else BFLOAT16, shape[0] != 3, shape[0] == 12, device)
