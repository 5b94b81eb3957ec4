"""Quantised weights on a GPU: every format at large odd shapes, and the simulator's tensor-core cases."""

import numpy as np
import pytest

from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import HOPPER, current_device
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.linear import Linear
from tests.kernels.guarded import BFLOAT16, FLOAT32, bits, random
from tests.kernels.matmul.batched_gemv_cases import CASES as BATCHED_GEMV_CASES
from tests.kernels.matmul.batched_gemv_cases import CHOSEN_CASES, check_batched_gemv
from tests.kernels.matmul.batched_gemv_cases import LARGE_CASES as LARGE_BATCHED_GEMV_CASES
from tests.kernels.matmul.quantized_cases import (
    BLOCK_CASES,
    CASES,
    LARGE_BLOCK_CASES,
    LARGE_CASES,
    LOST_PER_STEP_ON_DEVICE,
    check_blocks,
    check_codes,
)
from tests.kernels.matmul.tensor_core_gemv_cases import CASES as GEMV_CASES
from tests.kernels.matmul.tensor_core_gemv_cases import FORMS, LARGE_QKV_CASES, QKV_CASES, check_gemv, check_qkv
from tests.kernels.matmul.tensor_core_gemv_cases import LARGE_CASES as LARGE_GEMV_CASES


@pytest.fixture
def hopper():
    """Skip a test on a GPU without wgmma."""
    if current_device().compute_capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma is Hopper's alone")


@pytest.mark.covering("case.tiling", "case.name + case.flat + case.gated", "case.out")
@pytest.mark.parametrize("case", LARGE_CASES + CASES, ids=str)
def test_products_of_codes_are_those_in_float64(case, device, hopper):
    check_codes(case, device, LOST_PER_STEP_ON_DEVICE)


@pytest.mark.parametrize("case", BLOCK_CASES + LARGE_BLOCK_CASES, ids=str)
def test_products_of_codes_in_blocks_are_those_in_float64(case, device, hopper):
    check_blocks(case, device, LOST_PER_STEP_ON_DEVICE)


@pytest.fixture
def tensor_cores(case):
    """Skip a test on a GPU without mma.sync for the case's format."""
    form, capability = next(form for name, form in FORMS.items() if case.name.startswith(name)), current_device().compute_capability
    if capability < form.since:
        pytest.skip(f"a GPU of compute capability {capability} has no mma.sync for {form.name}")


@pytest.mark.covering("case.tiling", "case.name + case.gated", "case.name + case.dtype", "case.magnitude", "case.norm + case.residual")
@pytest.mark.parametrize("case", LARGE_GEMV_CASES + GEMV_CASES, ids=str)
def test_gemv_on_tensor_cores_is_that_in_float64(case, device, tensor_cores):
    check_gemv(case, device)


@pytest.mark.covering("case.tiling", "case.name + case.gated", "case.name + case.dtype", "case.magnitude", "case.m")
@pytest.mark.parametrize("case", LARGE_BATCHED_GEMV_CASES + CHOSEN_CASES + BATCHED_GEMV_CASES, ids=str)
def test_batched_gemv_is_that_in_float64(case, device, hopper):
    check_batched_gemv(case, device)


@pytest.mark.covering("case.name", "case.m")
@pytest.mark.parametrize("case", LARGE_BATCHED_GEMV_CASES[:4] + LARGE_BATCHED_GEMV_CASES[-4:], ids=str)
def test_batched_gemv_gives_the_same_bits_in_every_run(case, device, hopper):
    first, again = (check_batched_gemv(case, device) for _ in range(2))
    np.testing.assert_array_equal(bits(first), bits(again))


@pytest.mark.covering("case.name", "case.heads + case.head_dim", "case.slot")
@pytest.mark.parametrize("case", LARGE_QKV_CASES + QKV_CASES, ids=str)
def test_queries_keys_and_values_of_codes_are_those_in_float64(case, device, tensor_cores):
    check_qkv(case, device)


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
