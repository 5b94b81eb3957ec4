"""The fused GEMVs of a decode step, checked against float64, for the simulator and the GPU."""

import numpy as np

from minllm.kernels.matmul.gemv.gemv import gated_gemv, matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.gemv.sums import GemvTiling
from minllm.kernels.rope.rotate import rope_reference, rope_table
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, poisoned, random

EPSILON = 1e-5
UNIT = {FLOAT32: 2.0**-17, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
TILINGS = [None, GemvTiling(2, 2, 1, 2), GemvTiling(4, 1, 1), GemvTiling(2, 4, 1, 4)]
# m, n, k: one row or several, whole vectors or not, one step per warp or many.
SHAPES = [(1, 7, 520), (1, 5, 19), (3, 9, 264), (2, 6, 1032)]
# m, heads, kv_heads, head_dim, k
QKV_SHAPES = [(2, 1, 1, 32, 520), (1, 4, 2, 16, 264), (3, 3, 1, 6, 19)]


def normed(x, norm):
    """Return the RMSNorm of x in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + EPSILON) * norm.astype(np.float64)


def check_close(found, expected, dtype, k):
    """Check that `found` is within the rounding errors of dtype, for sums of k products of normal numbers."""
    unit = UNIT[np.dtype(dtype)]
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=unit, atol=unit * np.sqrt(k) / 4)


def check_norm_and_residual(m, n, k, dtype, tiling, device):
    """Check the plain GEMV with a norm, with a residual, and with both and a bias, the residual being `out`."""
    x, weight, norm = random((m, k), dtype, 0), random((n, k), dtype, 1), random((k,), dtype, 2)
    bias, residual = random((n,), dtype, 3), random((m, n), dtype, 4)
    arrays = device.array(x), device.array(weight)
    out = poisoned(device, (m, n), dtype)
    matmul_gemv(*arrays, out.array, norm=device.array(norm), epsilon=EPSILON, tiling=tiling)
    product = normed(x, norm) @ weight.astype(np.float64).T
    check_close(out.result(), product, dtype, k)
    out = poisoned(device, (m, n), dtype)
    matmul_gemv(*arrays, out.array, residual=device.array(residual), tiling=tiling)
    check_close(out.result(), x.astype(np.float64) @ weight.astype(np.float64).T + residual.astype(np.float64), dtype, k)
    stream = device.array(residual.copy())
    matmul_gemv(*arrays, stream, device.array(bias), norm=device.array(norm), epsilon=EPSILON, residual=stream, tiling=tiling)
    expected = product + bias.astype(np.float64) + residual.astype(np.float64)
    check_close(device.host(stream), expected, dtype, k)


def check_normed_gate(m, n, k, dtype, tiling, device):
    """Check the gated GEMV with a norm before it."""
    x, gate_up, norm = random((m, k), dtype, 0), random((2 * n, k), dtype, 1), random((k,), dtype, 2)
    out = poisoned(device, (m, n), dtype)
    arrays = (device.array(array) for array in (x, gate_up))
    gated_gemv(*arrays, out.array, norm=device.array(norm), epsilon=EPSILON, tiling=tiling)
    gate, up = np.split(normed(x, norm) @ gate_up.astype(np.float64).T, 2, axis=1)
    with np.errstate(over="ignore"):
        check_close(out.result(), gate / (1 + np.exp(-gate)) * up, dtype, k)


def check_qkv(m, heads, kv_heads, head_dim, k, dtype, with_bias, tiling, device):
    """Check queries, and keys and values in their slots; a slot of -1 leaves the cache unchanged."""
    width, blocks, block_size = (heads + 2 * kv_heads) * head_dim, 3, 4
    x, norm, weight, bias = random((m, k), dtype, 0), random((k,), dtype, 1), random((width, k), dtype, 2), random((width,), dtype, 3)
    random_numbers = np.random.default_rng(4)
    positions = random_numbers.integers(0, 32, m).astype(np.int32)
    slots = random_numbers.permutation(blocks * block_size)[:m].astype(np.int32)
    slots[m - 1 :] = -1 if m > 1 else slots[0]
    table = rope_table(32, head_dim, 100.0 ** -(np.arange(head_dim // 2) / (head_dim // 2)))
    old = random((blocks, block_size, kv_heads, head_dim), dtype, 5)
    key_cache, value_cache, query = device.array(old.copy()), device.array(old.copy()), poisoned(device, (m, heads, head_dim), dtype)
    gemv_qkv_rope_append(
        *(device.array(array) for array in (x, norm)), EPSILON, device.array(weight), device.array(bias) if with_bias else None,
        *(device.array(array) for array in (positions, slots, table)), query.array, key_cache, value_cache, tiling=tiling,
    )  # fmt: skip
    qkv = normed(x, norm) @ weight.astype(np.float64).T + (bias.astype(np.float64) if with_bias else 0)
    qkv = qkv.reshape(m, -1, head_dim)
    turned = rope_reference(qkv[:, : heads + kv_heads], positions, table)
    check_close(query.result(), turned[:, :heads], dtype, 2 * k)
    for cache, new in ((key_cache, turned[:, heads:]), (value_cache, qkv[:, heads + kv_heads :])):
        expected = old.astype(np.float64).reshape(-1, kv_heads, head_dim)
        expected[slots[slots >= 0]] = new[slots >= 0]
        check_close(device.host(cache).reshape(expected.shape), expected, dtype, 2 * k)
