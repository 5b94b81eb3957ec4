"""Two whole kernels in the vocabulary of Hopper: right and fast in the simulator, and compiled as they have to be for sm_90a."""

import numpy as np

from minllm.sim import detecting, simulate
from tests.ptx import hopper_matmul_kernel as matmul
from tests.ptx.cases_hopper import (
    attention_arguments,
    check_attention,
    check_matmul,
    matmul_arguments,
)
from tests.ptx.hopper_attention_kernel import hopper_attention_kernel
from tests.ptx.hopper_matmul_kernel import hopper_matmul_kernel


def count(sass, word):
    """Lines of machine code with a word in them."""
    return sum(word in line for line in sass)


def test_a_matrix_product(device):
    check_matmul(128, 256, 192, device)


def test_a_matrix_product_of_several_blocks_and_rounds_of_the_ring(device):
    check_matmul(256, 256, 320, device)


def test_causal_attention(device):
    check_attention(1, 1, 384, device)


def test_causal_attention_of_grouped_heads(device):
    check_attention(2, 1, 128, device)


def test_bytes_and_operations_are_counted(device):
    m, n, k = 256, 512, 128
    arguments, _ = matmul_arguments(m, n, k, device)
    trace = hopper_matmul_kernel.trace[(n // 256, m // 128), matmul.THREADS, None, matmul.SHARED_BYTES](*arguments)
    assert trace.arrays["a_map"].read.bytes == m * k * 2 * (n // 256)  # each column of blocks reads all of A
    assert trace.arrays["b_map"].read.bytes == n * k * 2 * (m // 128)
    assert trace.arrays["c"].write.bytes == m * n * 2
    assert sum(trace.flops.values()) == 2 * m * n * k


def test_blocks_may_be_spread_over_processes(device):
    arguments, (a, b) = matmul_arguments(256, 256, 64, device)
    with detecting(False):
        simulate(hopper_matmul_kernel, (1, 2), matmul.THREADS, *arguments, shared_bytes=matmul.SHARED_BYTES, processes=2)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(arguments[2].astype(np.float64), exact, rtol=2**-8, atol=1e-2)


def test_the_matrix_product_compiles_without_spills_and_without_serialised_products(device):
    compiled = hopper_matmul_kernel.compile(*matmul_arguments(128, 256, 192, device)[0])
    sass = compiled.sass()
    assert count(sass, "HGMMA.64x256x16.F32.BF16") == 4
    assert count(sass, "WARPGROUP.DEPBAR") == 2  # one in the loop, one behind it
    assert (count(sass, "UTMALDG.2D"), count(sass, "USETMAXREG")) == (2, 2)
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)


def test_attention_compiles_without_spills_and_without_serialised_products(device):
    compiled = hopper_attention_kernel.compile(*attention_arguments(1, 1, 128, device)[0])
    sass = compiled.sass()
    assert count(sass, "HGMMA.64x128x16.F32.BF16") == 32  # scores and values, once in the loop and once outside
    assert count(sass, "WARPGROUP.DEPBAR") == 4
    assert (count(sass, "USETMAXREG"), count(sass, "F64")) == (2, 0)
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
