"""Outputs made from the two sums of a pair of weight rows: plain, gated, or query, keys and values.

    Plain      rows 16 i + j and 16 i + j + 8:  out[m, n] = sum + bias[n] + residual[m, n]
    Gated      a row of the gate and that of up:  out[m, n] = silu(low) * high
    Attention  components d and d + D / 2 of a head:  RoPE rotates query and keys, not values; keys and values go to the cache

mma.sync's operand A has 16 rows, eight "low" ones and eight "high" ones: `rows_of` gives the weight rows of a pair, `prepare` loads the
other inputs of its outputs, for one row of x before its sums are done, and `write` stores them.

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU); PTX ISA, "Matrix fragments for mma.m16n8k16";
kernels/kv/append_pair.py.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.kv.append_pair import AttentionForm, make_append_pair
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import PAIRS, TILE_ROWS
from minllm.runtime.array_protocol import Array


class Outputs(NamedTuple):
    """The device functions with which a kernel writes its outputs."""

    rows_of: Callable  # (pair, rows of weight) -> (low, high); pairs past the last repeat it
    begin: Callable  # (arrays) -> `token`, the data that all pairs need, after the preceding kernels have ended
    prepare: Callable  # (arrays, token, m, pair) -> `prepared`, the other inputs of a pair's outputs for row m of x
    write: Callable  # (arrays, prepared, m, pair, low, high)


@cuda.jit(device=True, forceinline=True)
def begin_nothing(arrays):
    """Outputs.begin for outputs without data common to all pairs."""
    return int32(0)


class Plain(NamedTuple):
    """Arrays of plain outputs: bias [N] or None, residual [M, N] or None, out [M, N]."""

    bias: Array
    residual: Array
    out: Array


@cuda.jit(device=True, forceinline=True)
def plain_column(pair):
    """Return the column of out that belongs to the first row of a pair."""
    return int32((pair >> 3) * TILE_ROWS + (pair & (PAIRS - 1)))


class Addends(NamedTuple):
    """Bias and residual of a pair's outputs, unconverted, so that nothing waits for their loads yet."""

    low_bias: float
    high_bias: float
    low_residual: float
    high_residual: float


@functools.cache
def make_plain(has_bias: bool, has_residual: bool) -> Outputs:
    """Return the Outputs for Plain arrays."""

    @cuda.jit(device=True, forceinline=True)
    def rows_of(pair, rows):
        low = plain_column(pair)
        return min(low, int32(rows - 1)), min(int32(low + PAIRS), int32(rows - 1))

    @cuda.jit(device=True, forceinline=True)
    def bias_of(arrays, column):
        return arrays.bias[uint32(column)] if has_bias else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def residual_of(arrays, m, column):
        return arrays.residual[m, uint32(column)] if has_residual else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def prepare(arrays, token, m, pair):
        low, high = rows_of(pair, int32(arrays.out.shape[1]))
        return Addends(bias_of(arrays, low), bias_of(arrays, high), residual_of(arrays, m, low), residual_of(arrays, m, high))

    @cuda.jit(device=True, forceinline=True)
    def write(arrays, addends, m, pair, low, high):
        column, columns = plain_column(pair), int32(arrays.out.shape[1])
        if column < columns:
            arrays.out[m, uint32(column)] = low + float32(addends.low_bias) + float32(addends.low_residual)
        if int32(column + PAIRS) < columns:
            arrays.out[m, uint32(column + PAIRS)] = high + float32(addends.high_bias) + float32(addends.high_residual)

    return Outputs(rows_of, begin_nothing, prepare, write)


class Gated(NamedTuple):
    """Array of gated outputs: out [M, I]."""

    out: Array


@cuda.jit(device=True, forceinline=True)
def gated_rows(pair, rows):
    """Return a row of the gate, in the first half of weight, and the matching row of up."""
    low = min(int32(pair), int32((rows >> 1) - 1))
    return low, int32(low + (rows >> 1))


@cuda.jit(device=True, forceinline=True)
def prepare_gated(arrays, token, m, pair):
    """Outputs.prepare for gated outputs, which have no other inputs."""
    return pair


@cuda.jit(device=True, forceinline=True)
def write_gated(arrays, prepared, m, pair, low, high):
    """Write silu(gate) * up."""
    if pair < int32(arrays.out.shape[1]):
        arrays.out[m, uint32(pair)] = low * sigmoid(low) * high


GATED = Outputs(gated_rows, begin_nothing, prepare_gated, write_gated)


class Token(NamedTuple):
    """A token's position in its sequence, and its slot in the cache."""

    position: int
    slot: int


@functools.cache
def make_attention(form: AttentionForm) -> Outputs:
    """Return the Outputs for Attention arrays of one token."""
    half, (prepare_pair, write) = form.head_dim // 2, make_append_pair(form)

    @cuda.jit(device=True, forceinline=True)
    def attention_rows(pair, rows):
        pair = uint32(min(int32(pair), int32((rows >> 1) - 1)))
        low = int32(pair + pair // uint32(half) * uint32(half))
        return low, int32(low + half)

    @cuda.jit(device=True, forceinline=True)
    def begin(arrays):
        ptx.griddepcontrol_wait()
        return Token(int32(arrays.positions[0]), int32(arrays.slot_mapping[0]))

    @cuda.jit(device=True, forceinline=True)
    def prepare(arrays, token, m, pair):
        return prepare_pair(arrays, token.position, token.slot, pair)

    return Outputs(attention_rows, begin, prepare, write)
