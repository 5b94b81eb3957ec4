"""The GEMM whose sums do not depend on the number of rows: bit for bit the same row alone, among a few, and in chunks of 256."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.matmul.arguments import PADDED_ROWS
from minllm.kernels.matmul.choice import matmul
from minllm.kernels.matmul.flat import fixed_order
from minllm.kernels.matmul.flat.flat import matmul_flat
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, random

pytestmark = pytest.mark.results_only
ROWS = (1, 9, 70)


def product(x, weight, bias=None, out_dtype=None):
    """x @ weight.T + bias by the variant."""
    out = np.empty((len(x), len(weight)), out_dtype or x.dtype)
    matmul(x, weight, out, bias, variant="fixed_order")
    return out


@pytest.mark.parametrize(
    "dtype, out_dtype, n, k",
    [(BFLOAT16, FLOAT32, 33, 136), (FLOAT16, FLOAT16, 9, 72), (FLOAT32, FLOAT32, 5, 20), (BFLOAT16, FLOAT32, 9, 67)],
)
def test_a_row_is_the_same_alone_and_among_others(dtype, out_dtype, n, k):
    """Rows of 16 bytes, and rows that are not (67), where the fallback multiplies."""
    x, weight, bias = random((max(ROWS), k), dtype, 0), random((n, k), dtype, 1), random(n, out_dtype, 2)
    whole = product(x, weight, bias, out_dtype)
    for rows in ROWS[:-1]:
        np.testing.assert_array_equal(product(x[:rows].copy(), weight, bias, out_dtype), whole[:rows])
    np.testing.assert_array_equal(product(x[64:67].copy(), weight, bias, out_dtype), whole[64:67])  # other places of a tile


def test_chunks_of_256_rows():
    x, weight = random((259, 40), BFLOAT16, 0), random((9, 40), BFLOAT16, 1)
    whole = product(x, weight, out_dtype=FLOAT32)
    for first in (0, 255, 258):
        np.testing.assert_array_equal(product(x[first : first + 1].copy(), weight, out_dtype=FLOAT32), whole[first : first + 1])


@pytest.mark.parametrize("splits", [1, 2, 3, 4])
def test_on_hopper_the_padded_rows_and_the_rows_of_weight_of_a_block_change_nothing(splits):
    x, weight = random((17, 328), BFLOAT16, 0), random((65, 328), BFLOAT16, 1)
    found = []
    for rows, tiling in ((17, FlatWgmmaTiling(1, 3, splits)), (17, FlatWgmmaTiling(2, 2, splits)), (1, FlatWgmmaTiling(1, 2, splits))):
        out = np.empty((rows, 65), FLOAT32)
        matmul_flat(x[:rows].copy(), weight, out, tiling=tiling)
        found.append(out[:1])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("n, k", [(128256, 4096), (28672, 4096), (6144, 4096), (4096, 14336), (2048, 2048), (2048, 8192), (3, 8)])
def test_the_parts_of_k_depend_on_the_weight_alone(n, k):
    for tokens in PADDED_ROWS:
        tiling = fixed_order.wgmma_tiling(tokens, n, k)
        tiling.check(tokens)
        assert tiling.splits == fixed_order.wgmma_splits(n, k) and tiling.sharers == 1
        of_others = fixed_order.mma_tiling(min(tokens, 128))
        of_others.check(min(tokens, 128))
        assert of_others.splits == 2 and of_others.shared_bytes(min(tokens, 128)) <= 96 * 1024


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_gate_and_up_are_the_same_alone_and_among_others(dtype):
    """259 rows are two chunks; the result is that of the two products, but for their rounding to 16 bits."""
    x, gate_up = random((259, 72), dtype, 0), random((2 * 24, 72), dtype, 1)
    whole = np.empty((259, 24), dtype)
    fixed_order.gated_fixed_order(x, gate_up, whole)
    for first, rows in ((0, 1), (0, 9), (64, 3), (250, 9)):
        out = np.empty((rows, 24), dtype)
        fixed_order.gated_fixed_order(x[first : first + rows].copy(), gate_up, out)
        np.testing.assert_array_equal(out, whole[first : first + rows])
    gate, up = np.split(x.astype(np.float64) @ gate_up.astype(np.float64).T, 2, axis=1)
    np.testing.assert_allclose(whole.astype(np.float64), gate / (1 + np.exp(-gate)) * up, rtol=2.0**-7, atol=2.0**-7)


def test_gate_and_up_that_do_not_fit_are_refused():
    x, gate_up = random((3, 67), BFLOAT16, 0), random((16, 67), BFLOAT16, 1)
    with pytest.raises(KernelArgumentError, match="its rows and those of gate_up must begin on multiples of 16 bytes"):
        fixed_order.gated_fixed_order(x, gate_up, np.empty((3, 8), BFLOAT16))
