"""What wgmma has beyond the ladder: the order and shapes of its tiles, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.matmul import VARIANTS, tensor_core
from minllm.kernels.matmul.choice import can_use_wgmma
from minllm.kernels.matmul.output_tiles import make_tile_order
from minllm.kernels.matmul.wgmma import wgmma
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS, WgmmaTiling, choose_tiling
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply, matmul_wgmma
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, random


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5))
def test_every_tile_has_its_turn(tiles_m, tiles_n, group):
    tile_at = make_tile_order(group).py_func
    order = [tile_at(number, tiles_m, tiles_n) for number in range(tiles_m * tiles_n)]
    assert sorted(order) == [(row, column) for row in range(tiles_m) for column in range(tiles_n)]


def test_tiles_are_chosen_by_how_they_fill_the_machine():
    def chosen(m, n, gated=False):
        return choose_tiling(m, n, gated, 132)

    assert {chosen(*shape).tile_n for shape in ((8192, 8192), (4096, 4096), (2048, 6144), (2048, 28672))} == {256}
    assert chosen(4096, 4096).cluster == 2 and chosen(100, 100000).cluster == 1  # a second row of tiles would be empty
    assert chosen(2048, 3072).tile_n == 192  # 256 tiles of 128 x 192 on 132 multiprocessors: two rounds, nearly full
    assert chosen(100, 2048).tile_m == 64  # more blocks for little work
    assert [tiling[:2] for tiling in (chosen(128, 6144), chosen(256, 6144))] == [(1, 96), (2, 96)]  # 64 clusters of two blocks each
    assert chosen(256, 4096).early and not any(chosen(257, n).early for n in (2048, 3072, 4096, 6144, 28672))
    assert chosen(256, 14336, gated=True).tile_n == 224  # 128 clusters for 66 places: two rounds, nearly full
    assert all(chosen(m, n, gated=True).tile_n in GATED_TILES for m in (70, 512, 2048) for n in (3072, 8192, 14336))
    for tiling in TILINGS:
        tiling.check(gated=False)
        if tiling.tile_n in GATED_TILES:
            tiling._replace(chunks=1).check(gated=True)


@pytest.mark.parametrize("m", [1, 65, 127, 128, 129, 200, 257])
def test_few_rows_are_divided_evenly_so_that_boxes_end_where_x_ends(m, monkeypatch):
    boxes = []
    monkeypatch.setattr(wgmma, "tensor_map", lambda array, box, **options: boxes.append(box))
    monkeypatch.setattr(wgmma, "launch", lambda *arguments: None)
    x, weight, out = np.zeros((m, 8), BFLOAT16), np.zeros((96, 8), BFLOAT16), np.zeros((m, 96), BFLOAT16)
    tiling = WgmmaTiling(1, 96, 2, 2, early=True)
    matmul_wgmma(x, weight, out, tiling=tiling)
    (each, _), _, (stored, _) = boxes
    clusters = -(-m // 128)
    assert each == stored <= 64 and 0 <= each * 2 * clusters - m < 2 * clusters
    boxes.clear()
    matmul_wgmma(x, weight, out, tiling=tiling._replace(early=False))
    assert boxes[0][0] == boxes[2][0] == 64


def test_what_the_copy_engine_cannot_fetch_is_left_to_tensor_core(monkeypatch):
    aligned, odd = np.zeros((80, 16), BFLOAT16), np.zeros((80, 17), BFLOAT16)
    assert wgmma.fits(aligned, aligned) and not wgmma.fits(odd, odd) and not wgmma.fits(aligned[:, :0].copy(), aligned[:, :0].copy())
    asked = []
    monkeypatch.setattr(tensor_core, "matmul_tensor_core", lambda *arguments: asked.append(arguments))
    out = np.zeros((80, 80), BFLOAT16)
    VARIANTS["wgmma"](odd, odd, out)
    assert asked == [(odd, odd, out, None, None)]
    for launcher in (matmul_wgmma, VARIANTS["wgmma"]):
        with pytest.raises(KernelArgumentError, match="for a residual"):
            launcher(odd, odd, out, residual=out)
    with pytest.raises(KernelArgumentError, match="x is bfloat16.*; its rows must begin on multiples of 16 bytes"):
        matmul_wgmma(odd, odd, out)
    with pytest.raises(KernelArgumentError, match="must begin on multiples of 16 bytes"):
        matmul_silu_and_multiply(odd, odd, out[:, :40].copy())
    assert not can_use_wgmma(aligned, aligned)  # in the simulator tensor_core is the quicker one


def test_a_gpu_without_wgmma_is_named(monkeypatch):
    monkeypatch.setattr(wgmma, "has_wgmma", lambda array: False)
    x, out = np.zeros((8, 16), FLOAT16), np.zeros((8, 8), FLOAT16)
    with pytest.raises(KernelArgumentError, match="compute capability 9.0"):
        matmul_wgmma(x, x, out)


@pytest.mark.parametrize("tiling", [(1, 80, 2), (1, 64, 2, 1, 2), (3, 64, 2), (1, 64, 2, 4), (1, 64, 1), (2, 256, 5)], ids=str)
def test_tilings_that_cannot_be_launched_are_refused(tiling):
    with pytest.raises(KernelArgumentError, match="WgmmaTiling"):
        WgmmaTiling(*tiling).check(gated=False)
    x, out = np.zeros((8, 16), FLOAT16), np.zeros((8, 8), FLOAT16)
    with pytest.raises(KernelArgumentError, match="WgmmaTiling"):
        matmul_wgmma(x, x, out, tiling=WgmmaTiling(*tiling))


def test_mistakes_are_explained():
    x, gate_up, out = np.zeros((4, 16), BFLOAT16), np.zeros((16, 16), BFLOAT16), np.zeros((4, 8), BFLOAT16)
    for arguments, words in [
        ((x.astype(FLOAT32), gate_up, out), "x is float32.*must be bfloat16"),
        ((x, gate_up[:8], out), r"gate_up is .*gate_and_up=16, K=16"),
        ((x, gate_up, out[0]), r"out is .*\[8\]; its shape must be \[M, I\]"),
        ((x, gate_up, out.astype(FLOAT32)), "out is float32"),
        ((x, gate_up, out[:2]), "x is .*M=2"),
    ]:
        with pytest.raises(KernelArgumentError, match=words):
            matmul_silu_and_multiply(*arguments)
    with pytest.raises(KernelArgumentError, match="residual is .*M=4, N=16"):
        matmul_wgmma(x, gate_up, np.zeros((4, 16), BFLOAT16), residual=out)
    matmul_silu_and_multiply(x[:0], gate_up, out[:0])  # nothing to do


def test_the_reference_of_the_gate_agrees():
    x, gate_up = random((3, 16), FLOAT32, 0), random((8, 16), FLOAT32, 1)
    both = x.astype(np.float64) @ gate_up.astype(np.float64).T
    expected = both[:, :4] / (1 + np.exp(-both[:, :4])) * both[:, 4:]
    np.testing.assert_allclose(silu_and_multiply_reference(both), expected, rtol=1e-12)
