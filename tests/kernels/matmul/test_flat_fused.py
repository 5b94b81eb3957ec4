"""Flat GEMMs with residual, deferred norm, gate, rotation and cache write, in the simulator with all its detectors."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
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


def test_what_does_not_fit_is_refused():
    x, weight, residual, norm = (np.zeros(shape, BFLOAT16) for shape in ((3, 64), (256, 64), (3, 256), 256))
    assert fused.fits_fused(x, weight) and not fused.fits_fused(x[:1], weight) and not fused.fits_fused(x, weight[:128])
    arguments = [x, weight, None, residual, norm, 1e-5, np.empty]
    with pytest.raises(KernelArgumentError, match="norm is bfloat16"):
        fused.linear_add(*arguments[:4], norm[:8], *arguments[5:])
    with pytest.raises(KernelArgumentError, match="multiples of 128"):
        fused.linear_add(x, weight[:64], None, residual[:, :64].copy(), norm[:64], *arguments[5:], tiling=FlatWgmmaTiling(2, 2))
    with pytest.raises(KernelArgumentError, match="up to 64 rows"):
        many = np.zeros((65, 64), BFLOAT16)
        fused.linear_add(many, weight, None, np.zeros((65, 256), BFLOAT16), *arguments[4:])
    stream = DeferredNorm(x, x, np.zeros((1, 3), np.float32), 1e-5)
    with pytest.raises(KernelArgumentError, match="multiples of 16 bytes"):
        fused.gated(stream, np.zeros((14, 64), BFLOAT16), np.zeros((3, 7), BFLOAT16))
    with pytest.raises(KernelArgumentError, match="multiple of 64"):
        index, table, cache = np.zeros(3, np.int32), np.zeros((4, 32), np.float32), np.zeros((1, 4, 2, 32), BFLOAT16)
        fused.qkv_rope_append(stream, weight, None, index, index, table, np.zeros((3, 4, 32), BFLOAT16), cache, cache)
