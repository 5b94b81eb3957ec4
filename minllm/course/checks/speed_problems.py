"""Problems for timing the exercises' kernels: arrays far larger than a cache, in shapes that select the exercise's kernel.

If the package has a faster kernel for rows of whole vectors, rows here are not whole vectors, so that both sides run the exercise's
kernel. The kernels' docstrings give the bytes; arrays are bfloat16 unless a kernel needs another dtype.
"""

import math

import ml_dtypes
import numpy as np

from minllm.course.checks.speed import Problem
from minllm.kernels.attention import VARIANTS
from minllm.kernels.rope.reference import rope_table
from minllm.kernels.sampling.argmax import parts_of
from minllm.weights.formats import WEIGHT_FORMATS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BLOCK_SIZE = 16
EPSILON = 1e-5


def silu(ops, noise, tokens=2048, intermediate=14337):
    """SiLU and multiply: silu(gate) * up."""
    gate_up, out = ops.array(noise.array((tokens, 2 * intermediate), BFLOAT16)), ops.empty((tokens, intermediate), BFLOAT16)
    return Problem((gate_up, out), out, gate_up.nbytes + out.nbytes)


def gemv(ops, noise, outputs=14336, inputs=4096):
    """A GEMV: one row of x."""
    x, weight = (ops.array(noise.array(shape, BFLOAT16)) for shape in ((1, inputs), (outputs, inputs)))
    return Problem((x, weight, out := ops.empty((1, outputs), BFLOAT16)), out, weight.nbytes)


def int4(ops, noise, outputs=14336, inputs=4096):
    """A GEMV with int4 codes in groups of 32: one row of x."""
    weight = WEIGHT_FORMATS["int4"].encode(noise.array((outputs, inputs), np.float32))
    x, out = ops.array(noise.array((1, inputs), BFLOAT16)), ops.empty((1, outputs), BFLOAT16)
    return Problem((x, WEIGHT_FORMATS["int4"].place(ops, weight), out), out, weight.codes.nbytes + weight.scales.nbytes)


def embedding(ops, noise, tokens=8192, hidden=4097):
    """The lookup of a different row for each token."""
    ids = noise.random.permutation(2 * tokens)[:tokens].astype(np.int32)
    table, out = ops.array(noise.array((2 * tokens, hidden), BFLOAT16)), ops.empty((tokens, hidden), BFLOAT16)
    return Problem((ops.array(ids), table, out), out, 2 * out.nbytes)


def rms_norm(ops, noise, tokens=8192, hidden=4096):
    """The RMS norm without a residual."""
    x, weight = (ops.array(noise.array(shape, BFLOAT16)) for shape in ((tokens, hidden), (hidden,)))
    out = ops.empty((tokens, hidden), BFLOAT16)
    return Problem((x, weight, out, EPSILON), out, 2 * out.nbytes)


def rope(ops, noise, tokens=8192, heads=32, head_dim=128):
    """RoPE with interleaved pairs and a different position for each token."""
    table = rope_table(tokens, head_dim, 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim))
    x, out = ops.array(noise.array((tokens, heads, head_dim), BFLOAT16)), ops.empty((tokens, heads, head_dim), BFLOAT16)
    return Problem((x, ops.array(np.arange(tokens, dtype=np.int32)), ops.array(table), out, True), out, 2 * out.nbytes + table.nbytes)


def append(ops, noise, tokens=16384, row=1027):
    """The append of keys and values to every slot of a cache."""
    slots = noise.random.permutation(tokens).astype(np.int32)
    key, value = (ops.array(noise.array((tokens, 1, row), BFLOAT16)) for _ in range(2))
    key_cache, value_cache = (ops.empty((tokens // BLOCK_SIZE, BLOCK_SIZE, 1, row), BFLOAT16) for _ in range(2))
    return Problem((key, value, key_cache, value_cache, ops.array(slots)), key_cache, 4 * key.nbytes)


def argmax(ops, noise, rows=256, vocabulary=151936):
    """The argmax over the logits of a batch."""
    logits, out = ops.array(noise.array((rows, vocabulary), np.float32)), ops.empty((rows,), np.int32)
    parts, slots = (rows, parts_of(vocabulary)), ops.array(np.arange(rows, dtype=np.int32))
    return Problem((logits, slots, out, ops.empty(parts, np.float32), ops.empty(parts, np.int32)), out, logits.nbytes)


def product(size):
    """A GEMM of square matrices."""

    def prepare(ops, noise):
        x, weight = (ops.array(noise.array((size, size), BFLOAT16)) for _ in range(2))
        out = ops.empty((size, size), BFLOAT16)
        return Problem((x, weight, out), out, 2 * size**3, counts_flops=True)

    return prepare


def attention(variant, sequences, query_len, context, heads=32, kv_heads=8, head_dim=128):
    """Attention of new tokens at the end of a context, over a cache with blocks in random order; decode steps count its bytes."""

    def prepare(ops, noise):
        blocks = math.ceil(context / BLOCK_SIZE)  # blocks per sequence
        caches = [ops.array(noise.array((sequences * blocks, BLOCK_SIZE, kv_heads, head_dim), BFLOAT16)) for _ in range(2)]
        tables = noise.random.permutation(sequences * blocks).astype(np.int32).reshape(sequences, blocks)
        query = noise.array((sequences * query_len, heads, head_dim), BFLOAT16)
        out = ops.empty(query.shape, BFLOAT16)
        starts, lengths = np.arange(sequences + 1, dtype=np.int32) * query_len, np.full(sequences, context, np.int32)
        shapes = VARIANTS[variant].workspace_shapes(query, caches[0], tables)
        workspace = {name: ops.empty(shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()}
        arguments = (ops.array(query), *caches, out, *(ops.array(array) for array in (starts, lengths, tables)), head_dim**-0.5)
        options = dict(max_query_len=query_len, workspace=workspace)
        if query_len == 1:
            return Problem(arguments, out, 2 * caches[0].nbytes, options=options)
        visible = sequences * sum(range(context - query_len + 1, context + 1))  # pairs of a query and a key
        return Problem(arguments, out, 4 * heads * head_dim * visible, counts_flops=True, options=options)

    return prepare
