"""Flat GEMMs with what is fused around them, held against float64: shared by the simulator's tests and the GPU's."""

import ml_dtypes
import numpy as np

from minllm.catalogue.matmul.products import EPSILON
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.rope.rotate import rope_reference, rope_table
from tests.kernels.guarded import BFLOAT16, FLOAT16, Guarded, poisoned, random

UNIT = {FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
# m, n, k and the tiling: one eight of outputs per thread and two, K in one part and several, blocks that share x, one block and many.
SHAPES = [
    (3, 128, 128, FlatWgmmaTiling(1, 2)),
    (16, 64, 192, FlatWgmmaTiling(1, 3, 3)),
    (9, 128, 136, FlatWgmmaTiling(2, 2)),
    (13, 128, 256, FlatWgmmaTiling(1, 2, 2, 2)),
]
# m, heads, kv_heads, head_dim, k and the tiling
QKV_SHAPES = [
    (3, 2, 1, 64, 128, FlatWgmmaTiling(1, 2)),
    (12, 1, 1, 128, 136, FlatWgmmaTiling(1, 2, 2)),
    (17, 2, 1, 128, 64, FlatWgmmaTiling(2, 2)),
]


def check_close(found, expected, dtype, k):
    """Check that `found` is within the rounding errors of dtype, for sums of k products of normal numbers."""
    unit = UNIT[np.dtype(dtype)]
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=unit, atol=unit * np.sqrt(k) / 4)


class Arrays:
    """Makes arrays on a device, in the order asked for, full of NaN and between guard bands."""

    def __init__(self, device):
        self.device, self.made = device, []

    def __call__(self, shape, dtype):
        self.made.append(poisoned(self.device, shape, dtype))
        return self.made[-1].array


def deferred(device, x, norm, parts=3):
    """The DeferredNorm of x on a device, and what its `scaled` stands for in float64 before the division."""
    scaled = (x.astype(np.float32) * norm.astype(np.float32)).astype(x.dtype)
    squares = np.square(x.astype(np.float32)).sum(axis=1) * np.array([[0.5], [0.25], [0.25]], np.float32)[:parts]
    arrays = (device.array(np.ascontiguousarray(array)) for array in (x, scaled, squares))
    root = np.sqrt(np.square(x.astype(np.float64)).mean(axis=1, keepdims=True) + EPSILON)
    return DeferredNorm(*arrays, EPSILON), scaled.astype(np.float64) / root


def check_linear_add(m, n, k, tiling, dtype, with_bias, device):
    """Stream, scaled stream and squares, which together are the norm of the sum."""
    x, weight, norm = random((m, k), dtype, 0), random((n, k), dtype, 1), random((n,), dtype, 2)
    bias, residual = random((n,), dtype, 3), random((m, n), dtype, 4)
    empty = Arrays(device)
    on_device = (device.array(x), device.array(weight), device.array(bias) if with_bias else None, device.array(residual))
    found = fused.linear_add(*on_device, device.array(norm), EPSILON, empty, tiling=tiling)
    stream, scaled, squares = (guarded.result() for guarded in empty.made)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T + residual.astype(np.float64)
    check_close(stream, expected + (bias.astype(np.float64) if with_bias else 0), dtype, k)
    wide = stream.astype(np.float64)
    np.testing.assert_allclose(scaled.astype(np.float64), wide * norm.astype(np.float64), rtol=UNIT[np.dtype(dtype)], atol=1e-30)
    np.testing.assert_allclose(squares.sum(axis=0), np.square(wide).sum(axis=1), rtol=1e-5)
    assert found.epsilon == EPSILON


def check_gated(m, n, k, tiling, dtype, device):
    """silu(gate) * up of a norm that is not finished."""
    x, gate_up, norm = random((m, k), dtype, 0), random((2 * n, k), dtype, 1), random((k,), dtype, 2)
    stream, finished = deferred(device, x, norm)
    out = poisoned(device, (m, n), dtype)
    fused.gated(stream, device.array(gate_up), out.array, tiling=tiling)
    gate, up = np.split(finished @ gate_up.astype(np.float64).T, 2, axis=1)
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-gate))
    expected, slope = gate * share * up, (share + gate * share * (1 - share)) * up
    allowed = UNIT[np.dtype(dtype)] * np.abs(expected) + sum_error(k) * (np.abs(slope) + np.abs(gate * share))
    allowed += 2.0**-126 * np.abs(gate * up) + float(ml_dtypes.finfo(dtype).smallest_subnormal)  # the sigmoid of -88 is 0 in float32
    excess = np.abs(out.result().astype(np.float64) - expected) / allowed
    assert excess.max() <= 1, f"{(excess > 1).sum()} of {excess.size} outputs are wrong, by up to {excess.max():.2f} of what is allowed"


def sum_error(k):
    """What tensor cores may lose of a sum of k products of normal numbers: each of k / 16 additions cuts the float32 sum toward zero."""
    return k / 16 * 2.0**-23 * np.sqrt(k)


def check_qkv(m, heads, kv_heads, head_dim, k, tiling, dtype, is_deferred, with_bias, device):
    """Queries, and keys and values where they belong; a slot of -1 leaves the cache as it was."""
    width, blocks, block_size = (heads + 2 * kv_heads) * head_dim, 5, 4
    x, norm, weight, bias = random((m, k), dtype, 0), random((k,), dtype, 1), random((width, k), dtype, 2), random((width,), dtype, 3)
    random_numbers = np.random.default_rng(4)
    positions = random_numbers.integers(0, 32, m).astype(np.int32)
    slots = random_numbers.permutation(blocks * block_size)[:m].astype(np.int32)
    slots[m - 1] = -1
    table = rope_table(32, head_dim, 100.0 ** -(np.arange(head_dim // 2) / (head_dim // 2)))
    old = random((blocks, block_size, kv_heads, head_dim), dtype, 5)
    key_cache, value_cache = Guarded(device, old), Guarded(device, old)
    query = poisoned(device, (m, heads, head_dim), dtype)
    rows, finished = deferred(device, x, norm) if is_deferred else (device.array(x), x.astype(np.float64))
    fused.qkv_rope_append(
        rows, device.array(weight), device.array(bias) if with_bias else None,
        *(device.array(array) for array in (positions, slots, table)), query.array, key_cache.array, value_cache.array, tiling=tiling,
    )  # fmt: skip
    qkv = (finished @ weight.astype(np.float64).T + (bias.astype(np.float64) if with_bias else 0)).reshape(m, -1, head_dim)
    turned = rope_reference(qkv[:, : heads + kv_heads], positions, table)
    check_close(query.result(), turned[:, :heads], dtype, 2 * k)
    for cache, new in ((key_cache, turned[:, heads:]), (value_cache, qkv[:, heads + kv_heads :])):
        expected = old.astype(np.float64).reshape(-1, kv_heads, head_dim)
        expected[slots[slots >= 0]] = new[slots >= 0]
        check_close(cache.result().reshape(expected.shape), expected, dtype, 2 * k)
