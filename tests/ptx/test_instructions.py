"""Each instruction's emulation, inside a simulated kernel, against NumPy; and each compiles to the machine instruction it names."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, uint16, uint32

from minllm import ptx
from minllm.errors import SimulationError
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.machine_code import opcodes, sass_of_all
from minllm.sim import detecting

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = [BFLOAT16, np.dtype(np.float16)]


def make_warp_product(multiply):
    """C [16, 8] = A [16, 16] x B [8, 16] transposed, by one warp: cp.async, ldmatrix, mma."""

    @kernel
    def warp_product_kernel(a, b, c):
        tile = cuda.shared.array(256, uint16, 128)
        lane = cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, lane * 8), a, lane * 8, 16)
        ptx.cp_async_commit_group()
        ptx.cp_async_wait_group_0()
        cuda.syncthreads()
        fragment = cuda.local.array(4, uint32)
        other = cuda.local.array(2, uint32)
        accumulator = cuda.local.array(4, float32)
        for i in range(4):
            accumulator[i] = float32(0)
        ptx.ldmatrix_x4(fragment, 0, ptx.shared_address(tile, (lane % 16) * 16 + (lane // 16) * 8))
        group, within = lane // 4, lane % 4
        words = ptx.load_128(b, group * 16)
        more = ptx.load_128_streaming(b, group * 16 + 8)
        other[0] = words[0]
        other[1] = more[0]
        if within == 1:
            other[0], other[1] = words[1], more[1]
        if within == 2:
            other[0], other[1] = words[2], more[2]
        if within == 3:
            other[0], other[1] = words[3], more[3]
        multiply(accumulator, 0, fragment, 0, other, 0)
        c[group, 2 * within] = accumulator[0]
        c[group, 2 * within + 1] = accumulator[1]
        c[group + 8, 2 * within] = accumulator[2]
        c[group + 8, 2 * within + 1] = accumulator[3]

    return warp_product_kernel


PRODUCTS = {BFLOAT16: make_warp_product(ptx.mma_m16n8k16_bf16), np.dtype(np.float16): make_warp_product(ptx.mma_m16n8k16_f16)}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_warp_multiplies_on_tensor_cores(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((8, 16)).astype(dtype)
    c = np.full((16, 8), np.nan, np.float32)
    launch(PRODUCTS[dtype], 1, 32, (a, b, c))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-5)


def test_the_warp_product_compiles_to_tensor_core_instructions():
    arrays = {dtype: (np.empty((16, 16), dtype), np.empty((8, 16), dtype), np.empty((16, 8), np.float32)) for dtype in HALVES}
    compiled = [PRODUCTS[dtype].compile(*arrays[dtype]) for dtype in HALVES]
    for one, sass in zip(compiled, sass_of_all(compiled), strict=True):
        for expected in ("HMMA.16816", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "LDG.E.128"):
            assert expected in "\n".join(sass)
        assert (one.spill_bytes, one.stack_bytes, one.shared_bytes) == (0, 0, 512)


@kernel
def without_waiting_kernel(x, out):
    tile = cuda.shared.array(4, float32, 128)
    ptx.cp_async_16(ptx.shared_address(tile, 0), x, 0, 16)
    ptx.cp_async_commit_group()
    out[0] = tile[0]


@kernel
def edge_kernel(x, out, valid_bytes):
    tile = cuda.shared.array(4, float32, 128)
    ptx.cp_async_16(ptx.shared_address(tile, 0), x, 0, valid_bytes)
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group_0()
    for i in range(4):
        out[i] = tile[i]


def test_a_copy_that_nobody_waits_for_has_not_arrived():
    out = np.zeros(1, np.float32)
    with detecting(False):
        launch(without_waiting_kernel, 1, 1, (np.ones(4, np.float32), out))
    assert np.isnan(out[0])


@pytest.mark.parametrize("valid", [0, 4, 12, 16])
def test_bytes_beyond_the_edge_are_zeros_and_are_not_read(valid):
    x = np.arange(1, 1 + max(valid // 4, 1), dtype=np.float32)
    out = np.full(4, np.nan, np.float32)
    launch(edge_kernel, 1, 1, (x, out, valid))
    assert out.tolist() == [1.0 + i if i < valid // 4 else 0.0 for i in range(4)]


@kernel
def convert_kernel(x, floats, words):
    # x: two 16-byte vectors of any dtype
    values = ptx.load_float32(x, 0)
    again = ptx.load_float32_streaming(x, 16 // x.itemsize)
    floats[0] = values[0]
    floats[1] = values[3]
    floats[2] = again[1]
    low, high = ptx.unpack_bf16x2(ptx.pack_bf16x2(values[0], values[1]))
    floats[3] = low
    floats[4] = high
    low, high = ptx.unpack_f16x2(ptx.pack_f16x2(values[0], values[1]))
    floats[5] = low
    floats[6] = high
    floats[7] = ptx.uint_as_float(ptx.float_as_uint(values[2]))
    floats[8] = ptx.ex2(values[0])
    floats[9] = ptx.rcp(values[1])
    floats[10] = ptx.tanh_approx(values[0])
    rotated = ptx.shf_l_wrap(uint32(0x80000001), uint32(0x80000001), uint32(36))
    ptx.store_128(words, 4, uint32(1), uint32(2), rotated, ptx.prmt(uint32(0x33221100), uint32(0x77665544), uint32(0x7520)))


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *HALVES], ids=str)
def test_loads_conversions_and_stores(dtype):
    count = 16 // dtype.itemsize
    x = np.random.default_rng(1).uniform(0.5, 2, 2 * count).astype(dtype)
    floats, words = np.full(11, np.nan, np.float32), np.zeros(8, np.uint32)
    launch(convert_kernel, 1, 1, (x, floats, words))
    f = x.astype(np.float32)
    expected = [f[0], f[3], f[count + 1], *f[:2].astype(BFLOAT16).astype(np.float32), *f[:2].astype(np.float16).astype(np.float32)]
    expected += [f[2], 2.0 ** f[0], 1 / f[1], np.tanh(f[0])]
    np.testing.assert_allclose(floats, np.array(expected, np.float32), rtol=2e-6)
    assert words.tolist() == [0, 0, 0, 0, 1, 2, 0x18, 0x77552200]


@kernel
def ordered_loads_kernel(x, out):
    # x: uint16; each thread loads its 4 bytes, and the first half of them 8
    i = cuda.threadIdx.x
    one = ptx.load_32_ordered(x, 2 * i)
    low, high = ptx.load_64_ordered(x, 4 * (i % 16))
    cuda.syncwarp()
    out[i, 0], out[i, 1], out[i, 2] = one, low, high


def test_ordered_loads():
    x, out = np.random.default_rng(2).integers(0, 1 << 16, 64, np.uint16), np.zeros((32, 3), np.uint32)
    launch(ordered_loads_kernel, 1, 32, (x, out))
    words = x.view(np.uint32)
    np.testing.assert_array_equal(out[:, 0], words)
    np.testing.assert_array_equal(out[:, 1:], np.tile(words.reshape(16, 2), (2, 1)))
    found = opcodes(ordered_loads_kernel.compile(x, out).sass())
    loads = [i for i, opcode in enumerate(found) if opcode.startswith("LDG.E")]
    assert [".64" in found[i] for i in loads] == [False, True]  # in their order, before the fence
    assert loads[1] < next(i for i, opcode in enumerate(found) if opcode.startswith(("WARPSYNC", "STG")))


@kernel
def dp4a_kernel(a, b, out):
    out[cuda.threadIdx.x] = ptx.dp4a(a[cuda.threadIdx.x], b[cuda.threadIdx.x], out[cuda.threadIdx.x])


def test_products_of_four_bytes():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (2, 8, 4)).astype(np.int8)
    c = rng.integers(-1000, 1000, 8).astype(np.int32)
    out = c.view(np.uint32).copy()
    launch(dp4a_kernel, 1, 8, (a.view(np.uint32)[:, 0].copy(), b.view(np.uint32)[:, 0].copy(), out))
    np.testing.assert_array_equal(out.view(np.int32), (a.astype(np.int32) * b).sum(axis=1) + c)
    assert any("IDP.4A" in line for line in dp4a_kernel.compile(out, out, out).sass())


@kernel
def shared_table_kernel(words, out):
    table = cuda.shared.array(256, uint32)
    table[cuda.threadIdx.x] = uint32(3 * cuda.threadIdx.x)
    cuda.syncthreads()
    start = ptx.keep_register(ptx.shared_address(table, 0))
    if cuda.threadIdx.x < out.shape[0]:  # byte 2 of a word, times the bytes of an entry
        out[cuda.threadIdx.x] = ptx.load_shared_32(ptx.dp4a_u32(words[cuda.threadIdx.x], uint32(4 << 16), start))


def test_products_of_unsigned_bytes_are_shared_addresses_to_load_from():
    words = np.random.default_rng(0).integers(0, 1 << 32, 8, np.uint32)
    out = np.zeros(8, np.uint32)
    launch(shared_table_kernel, 1, 256, (words, out))
    np.testing.assert_array_equal(out, 3 * (words >> 16 & 255))
    assert any("IDP.4A.U8.U8" in line for line in shared_table_kernel.compile(out, out).sass())


def test_products_of_unsigned_bytes_and_their_sum_wrap():
    assert ptx.dp4a_u32.emulation(0xFF02_03FF, 0xFF05_0780, 7) == 255 * 255 + 10 + 21 + 255 * 128 + 7
    assert ptx.dp4a_u32.emulation(1, 2, 0xFFFFFFFF) == 1


def test_approximate_reciprocals_flush_denormals():
    x = [2.0**126, -(2.0**126), 3e38, -3e38, 2.0**-126, 1.1e-38, -1.1e-38, 0.0, -0.0, np.inf, -np.inf, np.nan]
    expected = np.array([2.0**-126, -(2.0**-126), 0.0, -0.0, 2.0**126, np.inf, -np.inf, np.inf, -np.inf, 0.0, -0.0, np.nan], np.float32)
    found = np.array([ptx.rcp.emulation(np.float32(one)) for one in x])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_prmt_replicates_signs():
    assert ptx.prmt.emulation(0x00008000, 0x80000000, 0xF891) == 0xFF00FF80


@kernel
def exact_kernel(x, out, words):
    for i in range(x.shape[0]):
        out[i] = ptx.rcp_rn(x[i])
    words[0] = ptx.fma_f16x2(uint32(0x3C004200), uint32(0x40004000), uint32(0xBC003800))  # (3, 1) * (2, 2) + (0.5, -1)
    ptx.store_64(words, 2 * x.shape[0], uint32(7), uint32(8))


def test_exact_reciprocals_pairs_of_float16_and_half_vectors():
    x = np.array([0.5, 1.5, 2.5, 3.0, -1.0, 1e20, 0.7], np.float32)
    out, words = np.zeros(7, np.float32), np.zeros(16, np.uint32)
    launch(exact_kernel, 1, 1, (x, out, words))
    np.testing.assert_array_equal(out, np.float32(1) / x)
    assert words[:1].view(np.float16).tolist() == [6.5, 1.0] and words[14:].tolist() == [7, 8]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "addend, expected", [(2**-30, 2.046875), (2**-100, 2.046875), (0, 2.03125), (-(2**-30), 2.03125), (2**-9, 2.046875)]
)
def test_fma_of_bfloat16_rounds_once(addend, expected, sign):
    """9/8 * 29/16 lies midway between two bfloat16: however small, the addend decides."""
    a, b, c = (np.array([number, 1], BFLOAT16).view(np.uint32)[0] for number in (sign * 9 / 8, 29 / 16, sign * addend))
    found = np.array([ptx.fma_bf16x2.emulation(a, b, c)], np.uint32).view(BFLOAT16)
    assert found.tolist() == [sign * expected, 2]


@kernel
def misaligned_kernel(x, out):
    out[0] = ptx.load_128(x, 1)[0]


@kernel
def misaligned_half_kernel(x, out):
    out[0] = ptx.load_64_ordered(x, 1)[0]


@pytest.mark.parametrize("misaligned, byte_count", [(misaligned_kernel, 16), (misaligned_half_kernel, 8)])
def test_a_misaligned_vector_load_is_reported(misaligned, byte_count):
    with pytest.raises(SimulationError, match=f"not aligned to {byte_count} bytes"):
        launch(misaligned, 1, 1, (np.zeros(8, np.uint32), np.zeros(1, np.uint32)))


@kernel
def halves_kernel(words, converted, larger):
    i = cuda.threadIdx.x
    converted[i] = ptx.e4m3x2_to_f16x2(words[i])
    larger[i] = ptx.max_f16x2(words[i], words[(i + 1) % words.size])


def test_pairs_of_float16():
    """All e4m3 numbers, NaN among them, and the larger of two float16 of any bits, of a number and NaN the number."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**32, 128, np.uint32)
    words.view(np.uint16)[::2] = np.arange(256, dtype=np.uint8).view(np.uint16)
    converted, larger = np.zeros((2, 128), np.uint32)
    launch(halves_kernel, 1, 128, (words, converted, larger))
    e4m3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(converted.view(np.float16).astype(np.float32), e4m3)
    pairs = words.view(np.float16).reshape(128, 2)
    np.testing.assert_array_equal(larger.view(np.float16).reshape(128, 2), np.fmax(pairs, np.roll(pairs, -1, axis=0)))


def test_the_larger_zero_is_positive():
    assert ptx.max_f16x2.emulation(0x8000_0000, 0x0000_8000) == 0
    assert ptx.max_f16x2.emulation(0x8000_8000, 0x8000_BC00) == 0x8000_8000


@kernel
def narrow_copy_kernel(x, out):
    tile = cuda.shared.array(8, uint32)
    ptx.cp_async_16_narrow(ptx.shared_address(tile, 0), x, 0, 16)
    ptx.cp_async_16_narrow(ptx.shared_address(tile, 4), x, 16, 4)
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group_0()
    for i in range(8):
        out[i] = tile[i]


def test_narrow_copies():
    x, out = np.arange(32, dtype=np.uint8), np.ones(8, np.uint32)
    launch(narrow_copy_kernel, 1, 1, (x, out))
    np.testing.assert_array_equal(out, [*x.view(np.uint32)[:5], 0, 0, 0])
