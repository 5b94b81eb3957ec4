"""The matrix product on a GPU: the simulator's cases, large odd shapes at the tilings that models use, and over 2**31 weights."""

import numpy as np
import pytest

from minllm.kernels.matmul import VARIANTS, tensor_core, tiled
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.wgmma.tiling import TILINGS as WGMMA_TILINGS
from minllm.kernels.matmul.wgmma.wgmma import matmul_wgmma
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import HOPPER, current_device
from minllm.runtime.graph import CapturedGraph
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, poisoned, random
from tests.kernels.matmul import fused_cases, wgmma_cases
from tests.kernels.matmul.cases import (
    CASES,
    DTYPES,
    FEW_ROWS,
    Case,
    check_exact_product,
    check_product,
    inputs,
    product,
    spread,
    with_tilings,
)

LARGE_SHAPES = [(127, 129, 1031), (128, 256, 2048), (129, 257, 2040), (257, 1003, 520), (613, 509, 4104), (1, 4099, 4096), (8, 2053, 8191)]
WGMMA_LARGE_SHAPES = [(128, 256, 2048), (257, 1003, 520), (1111, 2056, 4104)]
FLAT_LARGE_SHAPES = [(m, 1003, 2056) for m in (1, 9, 17, 33, 65, 129, 256)]
FLAT_LARGE_SHAPES += [(8, 28672, 520), (31, 4099, 4104), (127, 20000, 264)]
MODEL_SHAPES = [(1, 3072, 2048), (1, 2048, 2048), (1, 16384, 2048), (1, 2048, 8192), (5, 1003, 344), (8, 6144, 4096), (2, 50257, 768)]
LARGE_CASES = [
    *spread("naive", LARGE_SHAPES, DTYPES),
    *spread("tiled", LARGE_SHAPES, DTYPES, with_tilings("tile", tiled.TILES)),
    *spread("tensor_core", LARGE_SHAPES, (BFLOAT16, FLOAT16), with_tilings("tiling", tensor_core.TILINGS)),
    *spread("tensor_core", LARGE_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("vectorized", LARGE_SHAPES, DTYPES),
    *spread("wgmma", WGMMA_LARGE_SHAPES, (BFLOAT16, FLOAT16), [(), *with_tilings("tiling", WGMMA_TILINGS)]),
    *spread("warpgroup", WGMMA_LARGE_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("warp_specialized", WGMMA_LARGE_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("flat", FLAT_LARGE_SHAPES, (BFLOAT16, FLOAT16)),
    *spread("gemv", FEW_ROWS + MODEL_SHAPES, DTYPES),
]
RANK_OVER_2_31 = (1_050_000, 2056)  # rows and columns of a weight of more than 2**31 elements


@pytest.fixture(autouse=True)
def hopper_for_wgmma(request):
    """wgmma's cases, and those of flat's kernel that uses it, need a GPU that has it."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    flat = any(isinstance(value, FlatWgmmaTiling) for _, value in getattr(case, "options", ()))
    if (flat or "wgmma" in request.node.name) and current_device().compute_capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma is Hopper's alone")


@pytest.mark.covering("case.variant + case.options", "case.variant + case.dtype + case.out_dtype", "case.variant + case.bias")
@pytest.mark.parametrize("case", LARGE_CASES + CASES, ids=str)
def test_random_numbers_are_within_the_error_bound(case, device):
    check_product(case, device)


@pytest.mark.covering("case.variant", "case.options")
@pytest.mark.parametrize("case", LARGE_CASES, ids=str)
def test_products_that_are_exact_are_exact(case, device):
    check_exact_product(case, device)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_runs_give_the_same_bits(variant, device):
    case = Case(variant, 7, 1003, 2056, BFLOAT16, FLOAT32, True)
    first, second = (product(case, *inputs(case), device) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.covering("tiling", "k")
@pytest.mark.parametrize(
    "tiling", [(1, 8, 2), (1, 4, 4), (1, 8, 4), (2, 8, 2), (2, 4, 4), (4, 4, 2), (1, 8, 8), (1, 8, 4, 2), (1, 8, 2, 4)]
)
@pytest.mark.parametrize("k", [2048, 8192, 5000])
def test_every_tiling_of_gemv(k, tiling, device):
    for dtype in (BFLOAT16, FLOAT16):
        check_product(Case("gemv", 1, 1003, k, dtype, dtype, True, (("tiling", gemv.GemvTiling(*tiling)),)), device)


@pytest.mark.parametrize("shape", [*fused_cases.SHAPES, (16, 2048, 8192, None), (64, 4096, 14336, None), (33, 4096, 4096, None)], ids=str)
def test_flat_wgmma_from_stream_to_stream(shape, device):
    fused_cases.check_linear_add(*shape, BFLOAT16, shape[0] == 3, device)
    fused_cases.check_gated(*shape, BFLOAT16, device)


@pytest.mark.parametrize("shape", [*fused_cases.QKV_SHAPES, (16, 32, 8, 64, 2048, None), (20, 32, 8, 128, 4096, None)], ids=str)
def test_flat_wgmma_from_norm_to_cache(shape, device):
    fused_cases.check_qkv(*shape, BFLOAT16, shape[0] != 3, shape[0] == 12, device)


@pytest.mark.parametrize("case", [*wgmma_cases.GATED, (1111, 1032, 520, BFLOAT16, None), (300, 264, 4104, FLOAT16, None)], ids=str)
def test_wgmma_with_the_gate(case, device):
    wgmma_cases.check_gated(*case, device)


@pytest.mark.parametrize("case", [*wgmma_cases.RESIDUALS, (1111, 2056, 520, BFLOAT16, BFLOAT16, None)], ids=str)
def test_wgmma_with_bias_and_residual(case, device):
    wgmma_cases.check_residual(*case, device)


def test_wgmma_is_captured_with_arrays_that_the_copy_engine_has_not_seen():
    ops, (m, n, k) = CudaOps("bfloat16"), (200, 264, 136)
    host = [random(shape, BFLOAT16, seed) for seed, shape in enumerate(((m, k), (n, k)))]

    def multiply(x, weight):
        out = ops.empty((m, n), BFLOAT16)
        matmul_wgmma(x, weight, out, stream=ops.stream)
        return out

    first, second = ([ops.array(array) for array in host] for _ in range(2))
    expected = ops.to_host(multiply(*first))  # compiles; the second copies lie elsewhere, and there are no tensor maps of them yet
    graph = CapturedGraph(lambda: multiply(*second), ops.core_stream, ops.memory)
    graph.launch()
    np.testing.assert_array_equal(ops.to_host(graph.result).view(np.uint8), expected.view(np.uint8))


@pytest.mark.xdist_group("gigabytes")
@pytest.mark.parametrize(
    ("variant", "m"),
    [("naive", 1), ("tiled", 1), ("tensor_core", 16), ("wgmma", 16), ("flat", 8), ("warp_per_row", 1), ("gemv", 1), ("gemv", 8)],
)
def test_weights_of_more_than_2_31_elements(variant, m, device):
    n, k = RANK_OVER_2_31
    dtype = FLOAT16
    x, weight = np.ones((m, k), dtype), np.zeros((n, k), dtype)  # 4.3 GB of zeros, which the host does not store
    weight[-1, 0::2] = 1
    weight[n // 2, -1] = 3
    arrays, out = (device.array(x), device.array(weight)), poisoned(device, (m, n), FLOAT32)
    VARIANTS[variant](*arrays, out.array)
    expected = np.zeros((m, n), np.float32)
    expected[:, -1], expected[:, n // 2] = k // 2, 3
    np.testing.assert_array_equal(out.result(), expected)
