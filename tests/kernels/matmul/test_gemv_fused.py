"""GEMV fused with norm, residual, RoPE and cache append: what is refused, and a residual stream changed in place."""

import numpy as np
import pytest

from minllm.catalogue.matmul.products import product
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.kv.append_pair import why_not
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.gemv.sums import GemvTiling
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.weights.formats import WEIGHT_FORMATS
from tests.kernels.guarded import BFLOAT16, FLOAT16, bits
from tests.kernels.launches import GuardedOps

INT8 = WEIGHT_FORMATS["int8"]


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
    with pytest.raises(KernelArgumentError, match="32 lanes to write the pairs of 8 rows"):
        many = np.zeros((8, 16), BFLOAT16), np.zeros(8, np.int32), np.zeros((8, 2, 8), BFLOAT16)
        gemv_qkv_rope_append(many[0], *arguments[1:5], many[1], many[1], table, many[2], cache, cache, tiling=GemvTiling(10, 2, 1))


@pytest.mark.parametrize("launch", [gemv_qkv_rope_append, INT8.kernels.normed_qkv], ids=["plain", "int8"])
def test_caches_with_scales_of_whole_groups_and_of_two_kinds_are_refused(launch):
    x, norm, index, table = np.zeros((1, 64), BFLOAT16), np.zeros(64, BFLOAT16), np.zeros(1, np.int32), np.zeros((4, 32), np.float32)
    weight = np.zeros((128, 64), BFLOAT16)
    weight = weight if launch is gemv_qkv_rope_append else INT8.encode(weight.astype(np.float32))
    plain = np.zeros((2, 4, 1, 32), BFLOAT16)
    int8, fp8 = (allocate(kv_format(name, 32), 2, 4, 1, np.zeros, np.array) for name in ("int8", "fp8"))
    for key, value, words in (
        (int8, int8, "a scale of int8 is that of a group of components.*project, then append"),
        (fp8, plain, "they must have one format"), (plain, fp8, "they must have one format"),
        (plain.astype(FLOAT16), plain.astype(FLOAT16), "key_cache is float16"),
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError, match=words):
            launch(x, norm, 1e-5, weight, None, index, index, table, np.zeros((1, 2, 32), BFLOAT16), key, value)


def test_why_a_cache_takes_no_single_pairs():
    fp8, int4 = (allocate(kv_format(name, 32), 2, 4, 1, np.zeros, np.array) for name in ("fp8_e5m2", "int4"))
    assert why_not(fp8, BFLOAT16) is None and why_not(np.zeros((2, 4, 1, 32), BFLOAT16), BFLOAT16) is None
    assert "a scale of int4" in why_not(int4, BFLOAT16) and "float16" in why_not(np.zeros((2, 4, 1, 32), BFLOAT16), FLOAT16)
