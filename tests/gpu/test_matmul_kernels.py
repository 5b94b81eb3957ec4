"""The matrix product on a GPU: the same bits in every run, captured tensor maps, and over 2**31 weights."""

import numpy as np
import pytest

from minllm.catalogue.matmul.products import product
from minllm.catalogue.noise import SHORT, Noise
from minllm.kernels.matmul import VARIANTS
from minllm.kernels.matmul.wgmma.wgmma import matmul_wgmma
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import HOPPER, current_device
from minllm.runtime.graph import CapturedGraph
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, poisoned, random
from tests.kernels.launches import GuardedOps

RANK_OVER_2_31 = (1_050_000, 2056)  # rows and columns of a weight of more than 2**31 elements


@pytest.fixture(autouse=True)
def hopper_for_wgmma(request):
    """wgmma needs a GPU that has it."""
    if "wgmma" in request.node.name and current_device().compute_capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma is Hopper's alone")


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_runs_give_the_same_bits(variant, device):
    launch = product(variant, 7, 1003, 2056, BFLOAT16, FLOAT32, bias=True)
    host, ops = launch.arrays(Noise(length=SHORT)), GuardedOps(device)
    first, second = (device.host(launch.run(ops, {name: device.array(one) for name, one in host.items()})["out"]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


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
