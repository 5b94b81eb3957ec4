"""ldmatrix, stmatrix, mma.sync and fp8 conversions in the simulator against NumPy, and their machine code."""

import numpy as np
import pytest

from minllm import ptx
from minllm.runtime.machine_code import sass_of_all
from tests.ptx.cases_matrix import (
    BFLOAT16,
    FP8,
    MOVES,
    PRODUCTS,
    check_fp8,
    check_mma,
    check_move,
    fp8_arguments,
    make_fp8_kernel,
    make_mma_kernel,
    make_move_kernel,
    mma_arguments,
    move_arguments,
)


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_tiles_between_shared_memory_and_registers(move, device):
    check_move(move, device)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_a_warp(name, device):
    check_mma(name, device)


@pytest.mark.parametrize("name", FP8)
def test_fp8_and_back(name, device):
    check_fp8(name, device)


def test_machine_code_of_moves(device):
    compiled = [make_move_kernel(tiles, transposed).compile(*move_arguments(tiles, device)[0]) for tiles, transposed in MOVES]
    for (tiles, transposed), one, sass in zip(MOVES, compiled, sass_of_all(compiled), strict=True):
        kind = f"16.M{'T' if transposed else ''}88{'' if tiles == 1 else f'.{tiles}'} "
        assert f"LDSM.{kind}" in "\n".join(sass) and f"STSM.{kind}" in "\n".join(sass)
        assert (one.spill_bytes, one.stack_bytes) == (0, 0)


# Hopper has no fp8 unit behind mma.sync (only behind wgmma): it converts to float16 and multiplies those.
MACHINE_CODE = {
    (8, 0): {"mma_m16n8k8_tf32": "HMMA.1688.F32.TF32"},
    (8, 9): {"mma_m16n8k32_e4m3": "QMMA.16832.F32.E4M3.E4M3", "mma_m16n8k32_e5m2": "QMMA.16832.F32.E5M2.E5M2"},
    (9, 0): {
        "mma_m16n8k16_bf16": "HMMA.16816.F32.BF16",
        "mma_m16n8k16_f16": "HMMA.16816.F32 ",
        "mma_m16n8k32_s8": "IMMA.16832.S8.S8",
        "mma_m16n8k32_u8_s8": "IMMA.16832.U8.S8",
        "mma_m16n8k32_e4m3": "HMMA.16816.F32 ",
    },
}


@pytest.mark.parametrize("capability", MACHINE_CODE, ids=str)
def test_machine_code_of_products(capability, device):
    expected = MACHINE_CODE[capability]
    compiled = [make_mma_kernel(name).compile(*mma_arguments(name, device)[0], compute_capability=capability) for name in expected]
    for name, one, sass in zip(expected, compiled, sass_of_all(compiled), strict=True):
        assert any(expected[name] in line for line in sass), name
        assert (one.spill_bytes, one.stack_bytes) == (0, 0)


def test_machine_code_of_conversions(device):
    for name, sass in zip(FP8, sass_of_all([make_fp8_kernel(name).compile(*fp8_arguments(device)[0]) for name in FP8]), strict=True):
        text = "\n".join(sass)
        assert f"F2FP.SATFINITE.{name.upper()}.F32" in text and f"F2FP.F16.{name.upper()}.UNPACK_B" in text


def test_conversions_of_16_bits_against_numpy():
    bits = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
    bits = np.concatenate([bits, np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x3F808000, 0x3F818000, 0x7F7FFFFF], np.uint32)])
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    for pack, unpack, dtype in ((ptx.pack_bf16x2, ptx.unpack_bf16x2, BFLOAT16), (ptx.pack_f16x2, ptx.unpack_f16x2, np.dtype(np.float16))):
        with np.errstate(over="ignore"):
            expected = x.astype(dtype)
        words = np.array([pack.emulation(a, b) for a, b in zip(x, x[::-1])], np.uint32)
        np.testing.assert_array_equal(words & 0xFFFF, expected.view(np.uint16))
        np.testing.assert_array_equal(words >> 16, expected[::-1].view(np.uint16))
        back = np.array([unpack.emulation(word) for word in words])
        np.testing.assert_array_equal(back, np.stack([expected, expected[::-1]], 1).astype(np.float32))
        assert np.isnan(unpack.emulation(pack.emulation(np.float32(np.nan), np.float32(0)))[0])


@pytest.mark.parametrize("x", [-200, -126.5, -126, -1.5, -0.0, 0, 0.3, 1, 127.99, 128, 1e30, np.inf, -np.inf, np.nan])
def test_powers_of_two(x):
    with np.errstate(over="ignore", under="ignore"):
        exact = np.float32(np.exp2(np.float64(x)))
    expected = 0 if exact < 2.0**-126 else exact
    np.testing.assert_allclose(ptx.ex2.emulation(np.float32(x)), expected, rtol=3e-6)
