"""Inputs and expected results of the two whole kernels, a matrix product and causal attention."""

import math

import ml_dtypes
import numpy as np

from minllm.runtime.kernel import launch
from minllm.runtime.tensor_map import tensor_map
from tests.ptx import hopper_attention_kernel as attention
from tests.ptx import hopper_matmul_kernel as matmul

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def random_tiles(rng, *shape):
    """Normally distributed bfloat16."""
    return rng.standard_normal(shape).astype(BFLOAT16)


def matmul_arguments(m, n, k, device):
    """The kernel's arguments for [m, k] times [n, k] transposed, and both on the host."""
    rng = np.random.default_rng(0)
    a, b = random_tiles(rng, m, k), random_tiles(rng, n, k)
    a_map = tensor_map(device.array(a), (matmul.ROWS, matmul.DEPTH))
    b_map = tensor_map(device.array(b), (matmul.COLUMNS, matmul.DEPTH))
    return (a_map, b_map, device.array(np.zeros((m, n), BFLOAT16)), k // matmul.DEPTH), (a, b)


def run_matmul(arguments):
    """Launch the matrix product."""
    m, n = arguments[2].shape
    grid = n // matmul.COLUMNS, m // matmul.ROWS
    launch(matmul.hopper_matmul_kernel, grid, matmul.THREADS, arguments, shared_bytes=matmul.SHARED_BYTES)


def check_matmul(m, n, k, device):
    """The product, to the rounding of its bfloat16 result."""
    arguments, (a, b) = matmul_arguments(m, n, k, device)
    run_matmul(arguments)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    found = device.host(arguments[2]).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-3 * math.sqrt(k))


def attention_arguments(heads, kv_heads, sequence, device):
    """The kernel's arguments, and queries, keys and values on the host, [heads, sequence, 128]."""
    rng = np.random.default_rng(1)
    host = [random_tiles(rng, count, sequence, attention.HEAD_DIM) for count in (heads, kv_heads, kv_heads)]
    flat = [device.array(x.reshape(-1, attention.HEAD_DIM)) for x in host]
    maps = [tensor_map(array, (attention.ROWS, attention.HEAD_DIM // 2)) for array in flat]
    out = device.array(np.zeros((heads * sequence, attention.HEAD_DIM), BFLOAT16))
    scale = math.log2(math.e) / math.sqrt(attention.HEAD_DIM)
    return (*maps, out, sequence, heads // kv_heads, scale), host


def run_attention(arguments):
    """Launch causal attention."""
    out, sequence = arguments[3], arguments[4]
    grid = sequence // attention.ROWS, out.shape[0] // sequence
    launch(attention.hopper_attention_kernel, grid, attention.THREADS, arguments, shared_bytes=attention.SHARED_BYTES)


def check_attention(heads, kv_heads, sequence, device):
    """Causal attention, to the rounding of bfloat16 probabilities and results."""
    arguments, (query, key, value) = attention_arguments(heads, kv_heads, sequence, device)
    run_attention(arguments)
    found = device.host(arguments[3]).astype(np.float64).reshape(heads, sequence, attention.HEAD_DIM)
    hidden = np.triu_indices(sequence, 1)
    for head in range(heads):
        q, k, v = (x.astype(np.float64) for x in (query[head], key[head * kv_heads // heads], value[head * kv_heads // heads]))
        scores = q @ k.T / math.sqrt(attention.HEAD_DIM)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        exact = weights / weights.sum(1, keepdims=True) @ v
        np.testing.assert_allclose(found[head], exact, rtol=2**-7, atol=1.5e-2)
        assert np.linalg.norm(found[head] - exact) / np.linalg.norm(exact) < 3e-3
