"""The matrix product's variants in the simulator: extremes, what a row depends on, and callers' mistakes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.catalogue.matmul.plain import FLAT_TILINGS, GEMV_TILINGS, SMALL_WGMMA_TILINGS, TENSOR_CORE_TILINGS
from minllm.errors import KernelArgumentError
from minllm.kernels.matmul import VARIANTS, tensor_core
from minllm.kernels.matmul.arguments import PADDED_ROWS
from minllm.kernels.matmul.choice import choose, matmul
from minllm.kernels.matmul.flat import flat
from minllm.kernels.matmul.flat import mma_tiling as flat_mma_tiling
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma_tiling
from minllm.kernels.matmul.flat.mma_tiling import FlatTiling
from minllm.kernels.matmul.flat.output import stored_together
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.gemv.gemv import GemvTiling
from minllm.kernels.matmul.ladder import tiled, warpgroup
from minllm.kernels.matmul.reference import matmul_reference
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, poisoned, random

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what}:RuntimeWarning") for what in ("overflow", "invalid value")
]  # infinities on purpose

SMALL_OPTIONS = {
    "tiled": dict(tile=(8, 8, 2)),
    "vectorized": dict(tile=16),
    "tensor_core": dict(tiling=TENSOR_CORE_TILINGS[0]),
    "wgmma": dict(tiling=SMALL_WGMMA_TILINGS[0]),
    "gemv": dict(tiling=GEMV_TILINGS[1]),
    "flat": dict(tiling=FLAT_TILINGS[1]),
}


def product(device, variant, x, weight, bias=None, out_dtype=None):
    """x @ weight.T + bias by a variant with a small tiling, written between guard bands."""
    out = poisoned(device, (len(x), len(weight)), out_dtype or x.dtype)
    on_device = device.array(x), device.array(weight), out.array, None if bias is None else device.array(bias)
    VARIANTS[variant](*on_device, **SMALL_OPTIONS.get(variant, {}))
    return np.asarray(out.result())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rows_and_no_columns_launch_nothing_and_no_k_gives_the_bias(variant, device):
    for m, n in ((0, 5), (3, 0)):
        assert product(device, variant, *(np.zeros((rows, 16), BFLOAT16) for rows in (m, n))).shape == (m, n)
    x, weight, bias = np.zeros((3, 0), BFLOAT16), np.zeros((5, 0), BFLOAT16), random(5, BFLOAT16, 0)
    np.testing.assert_array_equal(product(device, variant, x, weight, bias), np.broadcast_to(bias, (3, 5)))
    np.testing.assert_array_equal(product(device, variant, x, weight), np.zeros((3, 5), BFLOAT16))


@pytest.mark.results_only
@pytest.mark.parametrize("k", [16, 19])
@pytest.mark.parametrize("variant", VARIANTS)
def test_infinities_and_nans_stay_in_their_row_and_column(variant, k, device):
    x, weight = random((5, k), BFLOAT16, 0), random((9, k), BFLOAT16, 1)
    x[4, k - 1], weight[8, 3] = np.nan, np.inf  # in the last row, which a tile's padding may repeat, and the last column, next to it
    found = np.isfinite(product(device, variant, x, weight).astype(np.float32))
    expected = np.ones((5, 9), bool)
    expected[4, :] = expected[:, 8] = False
    np.testing.assert_array_equal(found, expected)


@pytest.mark.results_only
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_beyond_the_dtype_overflow_to_infinity_and_fit_float32(variant, device):
    x, weight = np.full((2, 16), 200, FLOAT16), np.full((3, 16), [[200], [-200], [1]], FLOAT16)
    half = product(device, variant, x, weight)
    np.testing.assert_array_equal(half, np.array([[np.inf, -np.inf, 3200]] * 2, FLOAT16))
    full = product(device, variant, x, weight, out_dtype=FLOAT32)
    np.testing.assert_array_equal(full, np.array([[640000, -640000, 3200]] * 2, FLOAT32))
    huge = np.full((1, 16), 1e30, BFLOAT16)
    assert np.isposinf(product(device, variant, huge, huge).astype(np.float32)).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_arrays_that_are_not_aligned_to_16_bytes_are_multiplied_too(variant):
    x, weight = random((3, 16), BFLOAT16, 0), random((6, 16), BFLOAT16, 1)
    shifted = [np.concatenate([np.zeros(1, BFLOAT16), array.reshape(-1)])[1:].reshape(array.shape) for array in (x, weight)]
    out = np.full(3 * 6 + 1, np.nan, BFLOAT16)[1:].reshape(3, 6)
    VARIANTS[variant](*shifted, out, **SMALL_OPTIONS.get(variant, {}))
    np.testing.assert_allclose(out.astype(np.float32), matmul_reference(x, weight, out_dtype=np.float32), rtol=2**-7, atol=1e-4)


@pytest.mark.results_only
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_s_result_does_not_depend_on_the_other_rows(variant, request):
    @settings(max_examples=8 if request.config.option.exhaustive else 3, deadline=None)
    @given(data=st.data())
    def check_any(data):
        m, n, k = (data.draw(st.integers(1, high)) for high in (8, 20, 40))
        row, column = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
        x, weight = random((m, k), BFLOAT16, 0), random((n, k), BFLOAT16, 1)
        out, alone = np.empty((m, n), np.float32), np.empty((1, 1), np.float32)
        VARIANTS[variant](x, weight, out, **SMALL_OPTIONS.get(variant, {}))
        VARIANTS[variant](x[row : row + 1].copy(), weight[column : column + 1].copy(), alone, **SMALL_OPTIONS.get(variant, {}))
        assert out[row, column] == alone[0, 0]

    check_any()


def test_a_gated_product_refuses_what_has_no_two_halves():
    x, out = np.zeros((1, 16), BFLOAT16), np.zeros((1, 3), BFLOAT16)
    with pytest.raises(KernelArgumentError, match="gate_and_up=6"):
        gemv.gated_gemv(x, np.zeros((5, 16), BFLOAT16), out)
    with pytest.raises(KernelArgumentError, match="rows are even"):
        gemv.gated_gemv(x, np.zeros((6, 16), BFLOAT16), out, tiling=GemvTiling(1, 2, 1))
    with pytest.raises(KernelArgumentError, match="gate_and_up=6"):
        flat.gated_flat(x, np.zeros((5, 16), BFLOAT16), out)
    with pytest.raises(KernelArgumentError, match="multiples of 16 bytes"):
        flat.gated_flat(x[:, :15].copy(), np.zeros((6, 15), BFLOAT16), out)


def test_the_reference_is_the_equation():
    x, weight, bias = random((3, 5), np.float32, 0), random((4, 5), np.float32, 1), random(4, np.float32, 2)
    expected = [
        [sum(float(a) * float(b) for a, b in zip(row, column, strict=True)) + float(c) for column, c in zip(weight, bias, strict=True)]
        for row in x
    ]
    np.testing.assert_allclose(matmul_reference(x, weight, bias), expected, rtol=1e-5, atol=1e-6)
    assert (
        matmul_reference(x.astype(BFLOAT16), weight).dtype == BFLOAT16
    )  # float32 copies of bfloat16 weights, as the CPU engine keeps them
    assert matmul_reference(x, weight, out_dtype=FLOAT16).dtype == FLOAT16
    assert matmul_reference(x.astype(np.float64), weight).dtype == np.float64
    half = matmul_reference(x.astype(BFLOAT16), weight.astype(BFLOAT16))
    oracle = x.astype(BFLOAT16).astype(np.float64) @ weight.astype(BFLOAT16).astype(np.float64).T
    np.testing.assert_allclose(half.astype(np.float64), oracle, rtol=2**-8)


def test_the_choice_of_a_variant():
    assert choose(1, 2048, 2048, "bfloat16") == choose(8, 100, 100, np.float32) == choose(8, 2048, 2047, np.float16) == "gemv"
    assert choose(9, 2048, 2048, ml_dtypes.bfloat16) == choose(32, 7, 8, np.float16) == "flat"
    assert choose(257, 2048, 2048, ml_dtypes.bfloat16) == choose(512, 7, 9, np.float16) == choose(9, 7, 9, np.float16) == "tensor_core"
    assert choose(9, 2048, 2048, np.float32) == choose(512, 7, 9, "float32", hopper=True) == "vectorized"
    assert choose(65, 2048, 2048, "bfloat16", hopper=True) == "wgmma"
    assert choose(64, 2048, 2049, "bfloat16", hopper=True) == choose(65, 2048, 2048, "bfloat16") == "tensor_core"
    for m, n, dtype in ((3, 7, BFLOAT16), (9, 7, FLOAT32), (9, 6, FLOAT16)):
        x, weight, out = random((m, 24), dtype, 0), random((n, 24), dtype, 1), np.empty((m, n), np.float32)
        matmul(x, weight, out)
        np.testing.assert_allclose(out, matmul_reference(x, weight, out_dtype=np.float32), rtol=1e-5, atol=1e-5)


def test_outputs_are_stored_together_where_rows_allow_it():
    out = np.zeros((3, 16), BFLOAT16)
    assert stored_together(out, BFLOAT16) == 8 and stored_together(out.astype(FLOAT32), BFLOAT16) == 4
    assert stored_together(np.zeros((3, 18), FLOAT32), BFLOAT16) == 1
    assert [stored_together(np.zeros((3, n), FLOAT16), FLOAT16) for n in (18, 17)] == [2, 1]
    shifted = np.zeros(3 * 16 + 2, BFLOAT16)
    assert [stored_together(shifted[i : i + 48].reshape(3, 16), BFLOAT16) for i in (1, 2)] == [1, 2]


def test_tilings_grow_with_the_work():
    assert tensor_core.choose_tiling(8192, 8192) == tensor_core.TILINGS[0]
    assert tensor_core.choose_tiling(512, 2048).tile_m < 128  # 64 blocks of 128 x 128 would leave half of the machine idle
    assert tensor_core.choose_tiling(9, 2048).tile_m == 16
    assert tensor_core.choose_tiling(1, 1) == tensor_core.TILINGS[-1]
    assert tiled.choose_tile(4096, 4096) == tiled.TILES[0] and tiled.choose_tile(100, 100) == tiled.TILES[-1]
    for tokens in PADDED_ROWS:
        for n in (64, 2048, 4096, 6144, 28672):
            few = min(tokens, flat_mma_tiling.MOST_TOKENS)
            flat_mma_tiling.choose_tiling(few, n, 4096, False).check(few)
            tiling = flat_wgmma_tiling.choose_tiling(tokens, n, 4096, False)
            tiling.check(-(-tokens // 32) * 32 if getattr(tiling, "sharers", 1) == 4 else tokens)
    for m in range(1, gemv.MOST_ROWS_OF_GEMV + 1):
        tiling = gemv.choose_tiling(m, 2048, 8192)
        assert tiling.warps % tiling.splits == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_mistakes_are_explained(variant):
    x, weight, out = np.zeros((2, 16), BFLOAT16), np.zeros((3, 16), BFLOAT16), np.zeros((2, 3), BFLOAT16)
    for arguments, words in [
        ((x, weight.astype(FLOAT16), out), "weight is float16.*must be bfloat16"),
        ((x, weight.T.copy(), out), r"weight is bfloat16 \[16, 3\].*K=16"),
        ((x[0], weight, out), r"x is bfloat16 \[16\].*\[M, K\]"),
        ((x, weight, out.T.copy()), "out is .*M=2, N=3"),
        ((x, weight, out.astype(FLOAT16)), "out is float16.*must be bfloat16 or float32"),
        ((x, weight, out, np.zeros(2, BFLOAT16)), "bias is .*N=3"),
        ((x, weight, out, np.zeros(3, FLOAT16)), "bias is float16"),
        ((x.astype(np.float64), weight.astype(np.float64), out), "x is float64"),
        ((x[:, ::2], weight[:, ::2], out), "contiguous"),
    ]:
        with pytest.raises(KernelArgumentError, match=words):
            VARIANTS[variant](*arguments)


def test_mistakes_of_one_variant_are_explained():
    x, weight, out = np.zeros((9, 16), FLOAT32), np.zeros((3, 16), FLOAT32), np.zeros((9, 3), FLOAT32)
    for tile in (48, 256, -16):
        with pytest.raises(KernelArgumentError, match="one of 16, 32, 64, 128"):
            VARIANTS["vectorized"](x, weight, out, tile=tile)
    with pytest.raises(KernelArgumentError, match="up to 8 rows of x, not 9"):
        matmul(x, weight, out, variant="gemv")
    for variant in ("tensor_core", "flat"):
        with pytest.raises(KernelArgumentError, match="x is float32.*must be float16 or bfloat16"):
            matmul(x, weight, out, variant=variant)
    with pytest.raises(KernelArgumentError, match="no matmul variant 'fast'.*gemv"):
        matmul(x, weight, out, variant="fast")
    with pytest.raises(KernelArgumentError, match="divide evenly"):
        gemv.matmul_gemv(x[:1], weight, out[:1], tiling=(1, 3, 1, 2))
    half = [array.astype(FLOAT16) for array in (x, weight, out)]
    wrong = [FlatTiling(16, 4, 2, 2), FlatTiling(16, 4, 4, 10), FlatTiling(24, 1, 1, 2), FlatWgmmaTiling(1, 40), FlatWgmmaTiling(3, 2)]
    for tiling in wrong:
        with pytest.raises(KernelArgumentError):
            flat.matmul_flat(*half, tiling=tiling)
    with pytest.raises(KernelArgumentError, match="up to 256 rows of x, not 257"):
        flat.matmul_flat(np.zeros((257, 16), FLOAT16), half[1], np.zeros((257, 3), FLOAT16))
    with pytest.raises(KernelArgumentError, match="up to 256 rows of x, not 257"):  # not left to the fallback, whatever the alignment
        VARIANTS["flat"](np.zeros((257, 15), FLOAT16), np.zeros((3, 15), FLOAT16), np.zeros((257, 3), FLOAT16))
    for tiling in ((8, 16, 16, 1, 1, 2), (16, 16, 24, 1, 1, 2), (16, 32, 16, 1, 2, 2), (16, 16, 16, 1, 1, 1)):
        with pytest.raises(KernelArgumentError):
            tensor_core.matmul_tensor_core(*half, tiling=tiling)


@pytest.mark.parametrize("variant", ["warpgroup", "warp_specialized"])
def test_the_rungs_below_wgmma_leave_other_gpus_and_unaligned_rows_to_tensor_core(variant, monkeypatch):
    asked = []
    monkeypatch.setattr(tensor_core, "matmul_tensor_core", lambda *arguments: asked.append(arguments))
    x, odd, out = np.zeros((3, 16), BFLOAT16), np.zeros((3, 17), BFLOAT16), np.zeros((3, 3), BFLOAT16)
    VARIANTS[variant](odd, odd, out)
    assert asked.pop() == (odd, odd, out, None, None)
    VARIANTS[variant](x, x, out)
    assert not asked
    monkeypatch.setattr(warpgroup, "has_wgmma", lambda array: False)
    VARIANTS[variant](x, x, out)
    assert asked == [(x, x, out, None, None)]
