"""GEMV fused with norm, residual, gate, RoPE and cache append, in the simulator with all its detectors."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.gemv.sums import GemvTiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32
from tests.kernels.matmul.gemv_cases import (
    QKV_SHAPES,
    SHAPES,
    TILINGS,
    check_norm_and_residual,
    check_normed_gate,
    check_qkv,
)

DTYPES = (FLOAT32, BFLOAT16, FLOAT16)


@pytest.mark.detected("tiling")
@pytest.mark.covering("tiling", "m + k")
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_norm_and_residual(m, n, k, tiling, device):
    check_norm_and_residual(m, n, k, DTYPES[(m + k) % 3], tiling, device)


@pytest.mark.detected("tiling")
@pytest.mark.covering("tiling", "m + k")
@pytest.mark.parametrize("tiling", TILINGS[:2])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_norm_before_a_gate(m, n, k, tiling, device):
    check_normed_gate(m, n, k, DTYPES[(m + k + 1) % 3], tiling, device)


@pytest.mark.detected("shape")
@pytest.mark.covering("tiling", "shape")
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("shape", QKV_SHAPES, ids=str)
def test_queries_keys_and_values(shape, tiling, device):
    check_qkv(*shape, DTYPES[shape[0] % 3], tiling is None, tiling, device)


def test_what_does_not_fit_is_refused():
    x, weight, out = np.zeros((1, 16), BFLOAT16), np.zeros((4, 16), BFLOAT16), np.zeros((1, 4), BFLOAT16)
    with pytest.raises(KernelArgumentError, match="norm is bfloat16"):
        matmul_gemv(x, weight, out, norm=np.zeros(15, BFLOAT16))
    with pytest.raises(KernelArgumentError, match="residual is float16"):
        matmul_gemv(x, weight, out, residual=np.zeros((1, 4), FLOAT16))
    query, cache = np.zeros((1, 2, 8), BFLOAT16), np.zeros((1, 4, 1, 8), BFLOAT16)
    index, table = np.zeros(1, np.int32), np.zeros((4, 8), np.float32)
    arguments = [x, np.zeros(16, BFLOAT16), 1e-5, np.zeros((32, 16), BFLOAT16), None, index, index, table, query, cache, cache]
    with pytest.raises(KernelArgumentError, match="rows are even"):
        gemv_qkv_rope_append(*arguments, tiling=GemvTiling(1, 2, 1))
    for wrong, match in ((0, "up to 8 rows"), (3, "weight is"), (7, "cos_sin is")):
        changed = [*arguments]
        changed[wrong] = np.zeros((9, 15), arguments[wrong].dtype)
        with pytest.raises(KernelArgumentError, match=match):
            gemv_qkv_rope_append(*changed)
