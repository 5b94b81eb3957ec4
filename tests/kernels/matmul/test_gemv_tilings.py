"""Which tilings GEMVs of one row choose: those that were measured, for whole weights and for the parts that tensor ranks have."""

import pytest

from minllm.kernels.matmul.gemv.gemv import choose_gated_tiling, choose_tiling
from minllm.kernels.matmul.gemv.gemv_qkv import choose_qkv_tiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32

AMPERE, ADA, HOPPER = (8, 0), (8, 9), (9, 0)


@pytest.mark.parametrize(
    "n, k, tiling",
    [
        (2048, 2048, (1, 8, 2, 2)), (2048, 8192, (2, 8, 4, 4)), (4096, 4096, (2, 8, 4, 2)), (4096, 14336, (2, 8, 4, 2)),  # 1B, 8B
        (2048, 4096, (2, 8, 2, 4)), (6144, 4096, (2, 8, 4, 2)), (28672, 4096, (2, 8, 4, 2)), (128256, 2048, (1, 8, 2, 2)),
        (3072, 3072, (1, 8, 2, 2)), (3072, 8192, (2, 8, 4, 2)), (3584, 3584, (1, 8, 2, 2)), (3584, 18944, (2, 8, 4, 2)),  # 3B, 7B
        (4096, 11008, (2, 8, 4, 2)), (5120, 5120, (2, 8, 4, 2)), (8192, 8192, (2, 8, 4, 2)), (8192, 28672, (2, 8, 4, 2)),  # 7B to 70B
        (4096, 2048, (2, 8, 2, 2)), (4096, 7168, (2, 8, 2, 2)), (4096, 1024, (2, 8, 2, 2)), (4096, 3584, (1, 4, 4, 1)),  # ranks of 8B
    ],
)  # fmt: skip
def test_plain(n, k, tiling):
    assert choose_tiling(1, n, k) == tiling


@pytest.mark.parametrize(
    "n, k, tiling",
    [
        (128, 2048, (1, 8, 1, 8)), (5120, 2048, (4, 8, 2, 2)), (6144, 4096, (2, 8, 2, 2)),  # Qwen3-30B-A3B, Qwen3-8B
        (128256, 2048, (2, 8, 2, 2)), (128256, 4096, (2, 8, 2, 2)),
    ],
)  # fmt: skip
def test_normed(n, k, tiling):
    assert choose_tiling(1, n, k, normed=True) == tiling


@pytest.mark.parametrize(
    "n, k, tiling",
    [
        (16384, 2048, (2, 8, 2, 2)), (28672, 4096, (2, 8, 2, 2)), (22016, 4096, (2, 8, 2, 2)), (57344, 8192, (2, 8, 2, 2)),
        (8192, 2048, (2, 8, 2, 2)), (4096, 2048, (4, 8, 2, 2)),  # two and four ranks of 1B
        (14336, 4096, (4, 4, 2, 1)), (7168, 4096, (4, 4, 1, 2)),  # and of 8B
    ],
)  # fmt: skip
def test_gated(n, k, tiling):
    assert choose_gated_tiling(1, n, k, normed=True) == tiling


@pytest.mark.parametrize(
    "n, k, tiling",
    [
        (3072, 2048, (2, 8, 4, 2)), (6144, 4096, (4, 8, 2, 2)), (4608, 3584, (2, 8, 4, 2)), (10240, 8192, (4, 8, 2, 2)),
        (3072, 4096, (4, 4, 2, 4)), (1536, 4096, (4, 16, 2, 4)),  # two and four ranks of 8B
    ],
)  # fmt: skip
def test_qkv(n, k, tiling):
    assert choose_qkv_tiling(1, n, k, BFLOAT16, HOPPER) == choose_qkv_tiling(1, n, k, FLOAT16, ADA) == tiling


@pytest.mark.parametrize("n", [1536, 3072, 6144])
def test_parts_change_nothing_where_registers_are_short(n):
    """Before Ada, in float32, with caches of 8-bit floats, and for several rows of x."""
    for dtype, capability, has_codes in ((BFLOAT16, AMPERE, False), (FLOAT32, ADA, False), (BFLOAT16, HOPPER, True)):
        assert choose_qkv_tiling(1, n, 4096, dtype, capability, has_codes) == (2, 8, 2, 2)
    assert choose_qkv_tiling(1, n, 4096, FLOAT32, HOPPER) == (4, 8, 2, 2)
    assert choose_qkv_tiling(2, n, 4096, BFLOAT16, HOPPER) == choose_gated_tiling(2, n, 4096, normed=True) == (2, 4, 2, 2)
    assert choose_tiling(5, 4096, n, short_of_registers=True) == choose_gated_tiling(5, n, 4096, True, True) == (2, 8, 1, 2)
