"""Flat GEMMs with residual, deferred norm, gate, rotation and cache write: what is refused."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from tests.kernels.guarded import BFLOAT16


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
