"""GEMV fused with norm, residual, RoPE and cache append: what is refused, and a residual stream changed in place."""

import numpy as np
import pytest

from minllm.catalogue.matmul.products import product
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.gemv.sums import GemvTiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, bits
from tests.kernels.launches import GuardedOps


def test_the_residual_may_be_the_output(device):
    launch = product("gemv", 3, 9, 264, BFLOAT16, bias=True, residual=True, norm=True)
    arrays = launch.arrays(Noise(length=SHORT))
    apart, stream = device.array(arrays["out"]), device.array(arrays["residual"])
    given = {name: device.array(array) for name, array in arrays.items()}
    for out, residual in ((apart, given["residual"]), (stream, stream)):
        launch.run(GuardedOps(device), {**given, "out": out, "residual": residual})
    np.testing.assert_array_equal(bits(device.host(stream)), bits(device.host(apart)))


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
