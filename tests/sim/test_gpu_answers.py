"""What an H200 computed with numba-cuda 0.30.4, as literals: the simulator has to give the same bits.

These are the corners in which a GPU differs from Python and NumPy: conversions out of range, shifts and divisions without a result, NaN and
signed zeros, the signed results of votes.
"""

import math

import numpy as np
import pytest
from numba import cuda, float32, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from minllm.errors import SimulationError
from minllm.sim import simulate

LARGE = [3e9, math.nan, -1.5, -3e9, 1e19, -1e19, 300.7, -300.7, math.inf, -math.inf, 40000.7, -40000.7, 70000, 255.5, 128, -129, 65535.9]
MOST, LEAST = 2**63 - 1, -(2**63)
TYPES = dict(int8=int8, int16=int16, int32=int32, int64=int64, uint8=uint8, uint16=uint16, uint32=uint32, uint64=uint64)
TEN_TO_19 = {"float32": 9999999980506447872, "float64": 10**19}  # 1e19 in either type
INTEGERS = {
    "int8": [-1, 0, -1, 0, -1, 0, 44, -44, -1, 0, -1, 0, -1, -1, -128, 127, -1],
    "int16": [32767, 0, -1, -32768, 32767, -32768, 300, -300, 32767, -32768, 32767, -32768, 32767, 255, 128, -129, 32767],
    "int32": [2**31 - 1, 0, -1, -(2**31), 2**31 - 1, -(2**31), 300, -300, 2**31 - 1, -(2**31), 40000, -40000, 70000, 255, 128, -129, 65535],
    "int64": [3 * 10**9, LEAST, -1, -3 * 10**9, MOST, LEAST, 300, -300, MOST, LEAST, 40000, -40000, 70000, 255, 128, -129, 65535],
    "uint8": [255, 0, 0, 0, 255, 0, 44, 0, 255, 0, 64, 0, 255, 255, 128, 0, 255],
    "uint16": [65535, 0, 0, 0, 65535, 0, 300, 0, 65535, 0, 40000, 0, 65535, 255, 128, 0, 65535],
    "uint32": [3 * 10**9, 0, 0, 0, 2**32 - 1, 0, 300, 0, 2**32 - 1, 0, 40000, 0, 70000, 255, 128, 0, 65535],
    "uint64": [3 * 10**9, 2**63, 0, 0, None, 0, 300, 0, 2**64 - 1, 0, 40000, 0, 70000, 255, 128, 0, 65535],
}
NAN_OF_FLOAT64 = {"int32": -(2**31), "uint32": 2**31}  # where it is another number than that of a float32


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_float_as_an_integer_by_a_cast_and_by_a_store(name, source):
    cast = TYPES[name]

    def convert(x, by_cast, by_store):
        for i in range(x.size):
            by_cast[i] = cast(x[i])
            by_store[i] = x[i]

    x, found = np.array(LARGE, source), np.zeros((2, len(LARGE)), name)
    simulate(convert, 1, 1, x, *found)
    expected = [TEN_TO_19[source] if answer is None else answer for answer in INTEGERS[name]]
    if source == "float64":
        expected[1] = NAN_OF_FLOAT64.get(name, expected[1])
    assert found.tolist() == [expected, expected]


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_int_and_round_clamp_to_64_bits(source):
    def convert(x, out, rounded):
        for i in range(x.size):
            out[i] = int(x[i])
            rounded[i] = round(x[i])

    x, out, rounded = np.array(LARGE[:10], source), np.zeros(10, np.int64), np.zeros(10, np.int64)
    simulate(convert, 1, 1, x, out, rounded)
    assert out.tolist() == INTEGERS["int64"][:10]
    assert rounded.tolist() == [3 * 10**9, LEAST, -2, -3 * 10**9, MOST, LEAST, 301, -301, MOST, LEAST]


def test_rounding_to_digits_goes_through_64_bits():
    def convert(x, out):
        for i in range(x.size):
            out[i] = round(x[i], 2)

    x = np.array([2.675, 1.005, -1.115, 0.125, 1e30, np.nan], np.float32)
    out = np.zeros_like(x)
    simulate(convert, 1, 1, x, out)
    assert out.view(np.uint32).tolist() == [0x402AE148, 0x3F800000, 0xBF8F5C29, 0x3DF5C28F, 0x5BA3D70A, 0x7FC00000]


def test_ranges_of_floats_and_the_ieee_remainder():
    def kernel(x, out):
        for i in range(math.ceil(x[0] / 4), x[1]):
            out[i] = i
        out[0] = math.remainder(x[0], 3)

    out = np.zeros(6)
    simulate(kernel, 1, 1, np.array([5.0, 4.9]), out)
    assert out.tolist() == [-1, 0, 2, 3, 0, 0]


def warp_of(kernel, *arrays, dtype=np.int64, rows=1):
    """What 32 threads store to out, [rows, 32] of a type that no vote has."""
    out = np.zeros((rows, 32), dtype)
    simulate(kernel, 1, 32, *arrays, out)
    return out.tolist() if rows > 1 else out[0].tolist()


def test_masks_are_signed():
    def kernel(out):
        lane = cuda.threadIdx.x
        mask = cuda.ballot_sync(0xFFFFFFFF, lane < 40)
        out[0, lane], out[1, lane], out[2, lane] = mask, mask == 0xFFFFFFFF, mask > 0
        out[3, lane], out[4, lane], out[5, lane] = mask >> 31, uint32(mask), cuda.popc(mask)
        out[6, lane] = cuda.match_any_sync(0xFFFFFFFF, lane // 8)
        out[7, lane], same = cuda.match_all_sync(0xFFFFFFFF, lane // 32)
        out[8, lane], out[9, lane] = same, cuda.activemask()

    found = [row[31] for row in warp_of(kernel, rows=10)]
    assert found == [-1, 0, 0, -1, 2**32 - 1, 32, -16777216, -1, 1, 2**32 - 1]


def test_matches_compare_bits():
    def kernel(x, y, out):
        lane = cuda.threadIdx.x
        out[0, lane] = cuda.match_any_sync(0xFFFFFFFF, x[lane])
        out[1, lane], _ = cuda.match_all_sync(0xFFFFFFFF, y[lane])
        out[2, lane], _ = cuda.match_all_sync(0xFFFFFFFF, math.nan)

    x, y = np.array([np.nan, 0, -0.0, 1] * 8, np.float32), np.array([0.0, -0.0] * 16)
    found = warp_of(kernel, x, y, rows=3)
    assert found == [[286331153, 572662306, 1145324612, -2004318072] * 8, [0] * 32, [-1] * 32]


def test_shuffles_take_distances_modulo_32():
    def kernel(out):
        lane = cuda.threadIdx.x
        out[0, lane] = cuda.shfl_xor_sync(0xFFFFFFFF, lane, 33)
        out[1, lane] = cuda.shfl_up_sync(0xFFFFFFFF, lane, 33)
        out[2, lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, 33)
        out[3, lane] = cuda.shfl_up_sync(0xFFFFFFFF, lane, -1)
        out[4, lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, -1)
        out[5, lane] = cuda.shfl_sync(0xFFFFFFFF, lane, lane + 40)

    lanes = list(range(32))
    assert warp_of(kernel, rows=6) == [
        [lane ^ 1 for lane in lanes], [0, *lanes[:-1]], [*lanes[1:], 31], [*lanes[:-1], 0], [31, *lanes[1:]], [*lanes[8:], *lanes[:8]]
    ]  # fmt: skip


COUNTED = {"int8": [8, 7], "int16": [16, 15], "int32": [32, 31], "int64": [64, 63], "uint8": [8, 7], "uint16": [16, 15]}


@pytest.mark.parametrize("name", COUNTED)
def test_popc_and_clz_count_in_the_width_of_their_operand(name):
    def kernel(x, out):
        out[0], out[1], out[2] = cuda.popc(x[0]), cuda.clz(x[1]), cuda.brev(x[1])

    out = np.zeros(3, np.int64)
    simulate(kernel, 1, 1, np.array([-1, 1]).astype(name), out)
    assert out.tolist() == [*COUNTED[name], 2**31]


def test_atomics_convert_to_the_type_of_the_array_and_flush_subnormals():
    def kernel(real, whole, unsigned, out):
        tile = cuda.shared.array(1, float32)
        tile[0] = real[0]
        cuda.atomic.add(tile, 0, real[0])
        out[0] = cuda.atomic.add(real, 0, real[0])
        out[1] = tile[0]
        cuda.atomic.add(real, 1, 0.1)
        cuda.atomic.add(whole, 0, 2.7)
        cuda.atomic.add(whole, 1, -0.5)
        cuda.atomic.max(unsigned, 0, -1)
        cuda.atomic.sub(unsigned, 1, 1)

    tiny = np.float32(1e-40)
    real, whole, unsigned, out = np.array([tiny, 1], np.float32), np.array([1, 5], np.int32), np.array([7, 0], np.uint32), np.zeros(2)
    simulate(kernel, 1, 1, real, whole, unsigned, out)
    assert real.tolist() == [0, np.float32(1.1)] and whole.tolist() == [3, 5] and unsigned.tolist() == [2**32 - 1] * 2
    assert out.tolist() == [tiny, tiny + tiny]  # shared memory keeps subnormal numbers


def test_a_record_is_copied_with_the_bytes_between_its_fields():
    def kernel(r):
        r[1] = r[0]

    r = np.arange(48, dtype=np.uint8).view(np.dtype([("a", np.int8), ("x", np.float32), ("n", np.int64)], align=True))
    simulate(kernel, 1, 1, r)
    assert r.view(np.uint8)[16:32].tolist() == list(range(16))


def computed(kernel, *arrays, size, dtype=np.float64, detect=False):
    """What one thread stores to out, [size]."""
    out = np.zeros(size, dtype)
    simulate(kernel, 1, 1, *arrays, out, detect=detect)
    return out


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_an_integer_divided_by_0_is_0_and_reported_under_detectors(dtype):
    def kernel(x, y, out):
        n = x[1]
        n //= y[0]
        out[0], out[1], out[2] = x[0] // y[0], x[0] % (y[0] + y[0]), n
        out[3] = x[0] // y[1]
        out[3] %= y[1]

    x, y = np.array([7, 9], dtype), np.array([0, 2], dtype)
    assert computed(kernel, x, y, size=4, dtype=np.int64).tolist() == [0, 0, 0, 1]
    with pytest.raises(SimulationError, match=r"an integer is divided by 0: a GPU gives 0 \(.*test_gpu_answers.py:\d+ in kernel"):
        computed(kernel, x, y, size=4, dtype=np.int64, detect=True)


def test_shifts_beyond_the_width():
    def kernel(x, count, out):
        for i in range(x.size):
            out[i, 0] = x[i] << count[i]
            out[i, 1] = x[i] >> count[i]

    x, counts = np.array([1, -1, 5, 1, -1]), np.array([-1, -1, -63, 64, 70])
    out = np.zeros((5, 2), np.int64)
    simulate(kernel, 1, 1, x, counts, out, detect=False)
    assert out.tolist() == [[0, 0], [0, -1], [0, 0], [0, 0], [0, -1]]
    with pytest.raises(SimulationError, match="a shift by -1 bits, beyond the width of the integer: a GPU gives 0"):
        simulate(kernel, 1, 1, x, counts, out, detect=True)
    out = np.zeros((1, 2), np.uint64)
    simulate(kernel, 1, 1, np.array([1], np.uint64), np.array([2**64 - 1], np.uint64), out, detect=False)
    assert out.tolist() == [[0, 0]]
    simulate(kernel, 1, 1, np.array([1], np.int32), np.array([32], np.int32), out, detect=True)  # Numba shifts in 64 bits
    assert out.tolist() == [[2**32, 0]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floor_division_and_remainder_of_floats(dtype):
    def kernel(x, y, out):
        for i in range(x.size):
            out[2 * i] = x[i] // y[i]
            out[2 * i + 1] = x[i] % y[i]

    nan, inf = math.nan, math.inf
    x = np.array([1, -1, 0, -7, 7, -7.5, 1, -0.0, 5.5, inf, 1e30], dtype)
    y = np.array([0, 0, 0, 2, -2, 2, inf, 3, -inf, 2, 3], dtype)
    last = [3.333333383491554e29, 0] if dtype == np.float32 else [3.333333333333333e29, 2.0**46]
    expected = [inf, nan, -inf, nan, nan, nan, -4, 1, -4, -1, -4, 0.5, nan, nan, -0.0, 0, nan, nan, nan, nan, *last]
    found = computed(kernel, x, y, size=22, dtype=dtype)
    np.testing.assert_array_equal(found, np.array(expected, dtype))
    assert math.copysign(1, found[14]) == -1


def test_powers_of_integers_wrap_and_negative_exponents_give_0():
    def kernel(x, n, out):
        out[0], out[1], out[2] = x[0] ** n[0], x[1] ** n[0], x[0] ** n[1]
        out[3], out[4], out[5] = pow(x[0], 40), pow(x[0], n[2]), x[1] ** -1
        out[6], out[7], out[8] = x[2] ** -1, x[3] ** 3, sum((x[4], x[2]))

    x, n = np.array([3, -2, 1, 3 * 10**9, 2**63 - 1]), np.array([5, -1, 0])
    found = computed(kernel, x, n, size=9)
    assert found.tolist() == [243, -32, 0, -6289078614652622815.0, 1, 0, 1, -2666827603905609728.0, -(2.0**63)]


def test_powers_of_float32_are_products():
    def kernel(x, n, out):
        for i in range(x.size):
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = x[i] ** 3, x[i] ** 4, x[i] ** -2, x[i] ** n

    x = np.concatenate([np.linspace(-9, 9, 100), [0.3419276773929596, -8.762617111206055, 0.0, np.inf, np.nan]]).astype(np.float32)
    out = np.zeros((x.size, 4), np.float32)
    simulate(kernel, 1, 1, x, 5, out)
    with np.errstate(all="ignore"):
        expected = np.stack([x * (x * x), (x * x) * (x * x), np.float32(1) / (x * x), x * ((x * x) * (x * x))], axis=1)
    np.testing.assert_array_equal(out, expected)
    assert out[100:102, :3].view(np.uint32).tolist() == [[0x3D23BE34, out[100, 1:2].view(np.uint32)[0], 0x4108DA24], [
        out[101, :1].view(np.uint32)[0], 0x45B83D97, out[101, 2:3].view(np.uint32)[0]]]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extrema_of_signed_zeros(dtype):
    def kernel(x, y, out):
        out[0], out[1], out[2], out[3] = min(x[0], y[0]), min(y[0], x[0]), max(x[0], y[0]), max(y[0], x[0])
        out[4], out[5] = max(x[1], y[1]), min(x[1], y[1])

    found = computed(kernel, np.array([-0.0, np.nan], dtype), np.array([0.0, 1.0], dtype), size=6, dtype=dtype)
    assert np.signbit(found[:4]).tolist() == [True, True, False, False] and found[4:].tolist() == [1, 1]


def test_fma_rounds_once():
    def kernel(x, y, z, out):
        for i in range(x.size):
            out[i] = cuda.fma(x[i], y[i], z[i])

    found = computed(kernel, np.array([1 + 2.0**-52]), np.array([1 - 2.0**-52]), np.array([-1.0]), size=1)
    assert found[0] == -(2.0**-104)
    # In float64 the sum is a tie of two float32 numbers, of which the last bits of the exact sum choose one.
    half = 1 + 2.0**-12
    ties = np.array([[1, 1, 2.0**-24 * (1 + 2.0**-23)], [1, 1 + 2.0**-23, 2.0**-60], [half, half, -(2.0**-70)]], np.float32).T
    single = computed(kernel, *ties, size=3, dtype=np.float32)
    exact = [np.float32(1 + 2.0**-23), np.float32(1 + 2.0**-23), np.float32(1 + 2.0**-11)]
    assert single.tolist() == exact


def test_guarded_operators_inside_each_other():
    def kernel(x, y, out):
        a, b, c = x[0], y[0], y[1]
        out[0] = a // b // c
        out[1] = a // (b // c)
        out[2] = (a >> b) % (a // c) << c
        out[3] = (a // b) * (a % c) - (a // y[2] << b)

    x, y = np.array([100]), np.array([5, 2, 0])
    assert computed(kernel, x, y, size=4).tolist() == [10, 50, 12, 0]
