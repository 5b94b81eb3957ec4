"""Quantised weights on a GPU: a Linear in every format, and the same bits in every run."""

import numpy as np
import pytest

from minllm.catalogue.matmul.quantized import quantized_product
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import HOPPER, current_device
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.linear import Linear
from tests.kernels.guarded import BFLOAT16, FLOAT32, bits, random
from tests.kernels.launches import result

SEVERAL_ROWS = [
    quantized_product("tensor_core_gemv", form, m, n, k, bias=True, distinct=256)
    for form, n, k in (("int4/128", 6144, 4096), ("nf4/not_nested", 1003, 2176))
    for m in (2, 8, 13, 16)
]


@pytest.fixture
def hopper():
    """Skip a test on a GPU without wgmma."""
    if current_device().compute_capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma is Hopper's alone")


@pytest.mark.parametrize("launch", SEVERAL_ROWS, ids=str)
def test_several_rows_give_the_same_bits_in_every_run(launch, device, hopper):
    first, again = (result(launch, device) for _ in range(2))
    np.testing.assert_array_equal(bits(first), bits(again))


@pytest.mark.covering("name", "rows")
@pytest.mark.parametrize("rows", [1, 7, 16, 40, 300])
@pytest.mark.parametrize("name", quantizations())
def test_a_linear_is_that_of_the_cpu_engine(name, rows, device):
    """The result holds for whichever variant is chosen for these rows."""
    found, n, k = WEIGHT_FORMATS[name], 1003, 1152
    if found.since is not None and current_device().compute_capability < found.since:
        pytest.skip(f"a GPU of compute capability {current_device().compute_capability} has no instructions for {name}")
    x, weight, ops = random((rows, k), BFLOAT16, 0), found.encode(random((n, k), FLOAT32, 1)), CudaOps("bfloat16")
    out = ops.to_host(ops.linear(ops.array(x), Linear(found.place(ops, weight), None, found, (n, k))))
    expected = found.linear(x.astype(FLOAT32), weight)
    np.testing.assert_allclose(out.astype(FLOAT32), expected, rtol=2.0**-6, atol=2.0**-8 * np.abs(expected).max())
