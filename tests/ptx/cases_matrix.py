"""Instructions of a warp: ldmatrix and stmatrix of 1, 2 and 4 tiles, every kind of mma.sync, and conversions to and from fp8."""

import functools

import ml_dtypes
import numpy as np
from numba import cuda, float32, int32, uint16, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel, launch

BFLOAT16, E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
MOVES = [(tiles, transposed) for tiles in (1, 2, 4) for transposed in (False, True)]
PRODUCTS = {
    "mma_m16n8k8_tf32": (np.dtype(np.float32), 8),
    "mma_m16n8k16_bf16": (BFLOAT16, 16),
    "mma_m16n8k16_f16": (np.dtype(np.float16), 16),
    "mma_m16n8k32_s8": (np.dtype(np.int8), 32),
    "mma_m16n8k32_u8_s8": (np.dtype(np.uint8), 32),  # the type of A; B is int8
    "mma_m16n8k32_e4m3": (E4M3, 32),
    "mma_m16n8k32_e5m2": (E5M2, 32),
}


@functools.cache
def make_move_kernel(tiles, transposed):
    """Loads tiles from shared memory into registers, shows them, and stores them to another place."""
    suffix = f"x{tiles}{'_trans' if transposed else ''}"
    ldmatrix, stmatrix = getattr(ptx, f"ldmatrix_{suffix}"), getattr(ptx, f"stmatrix_{suffix}")

    @kernel
    def move_kernel(x, words, out):
        # x, out: uint16 [tiles * 8, 8]; words: uint32 [tiles, 32]
        source, target = cuda.shared.array(256, uint16, 128), cuda.shared.array(256, uint16, 128)
        lane = cuda.threadIdx.x
        if lane < 8 * tiles:
            for i in range(8):
                source[lane * 8 + i] = x[lane, i]
        cuda.syncthreads()
        row = lane % (8 * tiles)
        fragment = cuda.local.array(4, uint32)
        ldmatrix(fragment, 0, ptx.shared_address(source, row * 8))
        for tile in range(tiles):
            words[tile, lane] = fragment[tile]
        stmatrix(ptx.shared_address(target, row * 8), fragment, 0)
        cuda.syncthreads()
        if lane < 8 * tiles:
            for i in range(8):
                out[lane, i] = target[lane * 8 + i]

    return move_kernel


def move_arguments(tiles, device):
    """x, words and out."""
    x = np.random.default_rng(tiles).integers(0, 2**16, (8 * tiles, 8)).astype(np.uint16)
    arrays = x, np.zeros((tiles, 32), np.uint32), np.zeros_like(x)
    return tuple(device.array(array) for array in arrays), x


def check_move(move, device):
    """Each lane gets its pair of each tile, and what is stored is what was loaded."""
    tiles, transposed = move
    arguments, x = move_arguments(tiles, device)
    launch(make_move_kernel(*move), 1, 32, arguments)
    words, out = device.host(arguments[1]), device.host(arguments[2])
    for tile in range(tiles):
        matrix = x[8 * tile : 8 * tile + 8].T if transposed else x[8 * tile : 8 * tile + 8]
        for lane in range(32):
            low, high = matrix[lane // 4, 2 * (lane % 4)], matrix[lane // 4, 2 * (lane % 4) + 1]
            assert words[tile, lane] == int(low) | int(high) << 16
    np.testing.assert_array_equal(out, x)


@functools.cache
def make_mma_kernel(name):
    """D [16, 8] = A B^T + D by one warp, its words straight from global memory."""
    multiply = getattr(ptx, name)
    accumulator_type = int32 if name.endswith("s8") else float32

    @kernel
    def mma_kernel(a, b, d):
        # a: uint32 [16, 8], b: uint32 [8, 8], words of a row's elements; d: [16, 8]
        lane = cuda.threadIdx.x
        group, within = lane // 4, lane % 4
        left, right = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
        accumulator = cuda.local.array(4, accumulator_type)
        for half in range(2):
            left[2 * half] = a[group, 4 * half + within]
            left[2 * half + 1] = a[group + 8, 4 * half + within]
            right[half] = b[group, 4 * half + within]
        for i in range(4):
            accumulator[i] = d[group + 8 * (i // 2), 2 * within + i % 2]
        multiply(accumulator, 0, left, 0, right, 0)
        for i in range(4):
            d[group + 8 * (i // 2), 2 * within + i % 2] = accumulator[i]

    return mma_kernel


def mma_arguments(name, device):
    """a, b and d for a kind of mma, and their numbers as float64."""
    dtype, depth = PRODUCTS[name]
    rng = np.random.default_rng(depth)
    if name.endswith("s8"):
        a, b = (rng.integers(np.iinfo(of).min, np.iinfo(of).max, (rows, depth), of, True) for rows, of in ((16, dtype), (8, np.int8)))
    else:
        a, b = (rng.standard_normal((rows, depth)).astype(dtype) for rows in (16, 8))
    d = rng.integers(-5, 5, (16, 8)).astype(np.int32 if name.endswith("s8") else np.float32)
    numbers = [x.astype(np.float64) for x in (a, b, d)]
    if dtype == np.float32:  # tf32 looks at the upper 19 bits
        numbers[:2] = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    return tuple(device.array(x) for x in (a.view(np.uint32), b.view(np.uint32), d)), numbers


def check_mma(name, device):
    """D is A B^T + D: exactly for integers."""
    arguments, (a, b, d) = mma_arguments(name, device)
    launch(make_mma_kernel(name), 1, 32, arguments)
    tolerance = 0 if name.endswith("s8") else 1e-4
    np.testing.assert_allclose(device.host(arguments[2]), a @ b.T + d, rtol=tolerance, atol=tolerance)


@functools.cache
def make_fp8_kernel(name):
    """Packs pairs of float32 to fp8, and unpacks them again."""
    pack, unpack = getattr(ptx, f"pack_{name}x2"), getattr(ptx, f"unpack_{name}x2")

    @kernel
    def fp8_kernel(x, words, out):
        i = cuda.grid(1)
        if i < words.size:
            words[i] = pack(x[2 * i], x[2 * i + 1])
            low, high = unpack(words[i])
            out[2 * i], out[2 * i + 1] = low, high

    return fp8_kernel


FP8 = {"e4m3": (E4M3, 448), "e5m2": (E5M2, 57344)}


def fp8_arguments(device):
    """Numbers of all sizes, ties, too large ones and NaN."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(250) * 2.0 ** rng.integers(-18, 18, 250)).astype(np.float32)
    x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e30, 448, 464], np.float32)])
    return tuple(device.array(a) for a in (x, np.zeros(x.size // 2, np.uint32), np.zeros_like(x))), x


def check_fp8(name, device):
    """The nearest number of the format, the largest one for what is beyond it."""
    dtype, largest = FP8[name]
    arguments, x = fp8_arguments(device)
    launch(make_fp8_kernel(name), 2, 128, arguments)
    expected = np.clip(x, -largest, largest).astype(dtype)
    words, out = device.host(arguments[1]), device.host(arguments[2])
    numbers = ~np.isnan(x)
    found = np.ascontiguousarray(words).view(np.uint16)[::2].copy().view(dtype)
    np.testing.assert_array_equal(found.astype(np.float32)[numbers], expected.astype(np.float32)[numbers])
    np.testing.assert_array_equal(out, expected.astype(np.float32))
