"""What becomes of the two sums of a pair of rows of weight: outputs with bias and residual, gate times up, or rotated queries and keys.

    Plain      rows 16 i + j and 16 i + j + 8:  out[n] = sum + bias[n] + residual[n]
    Gated      a row of the gate and its of up:  out[n] = silu(low) * high
    Attention  components d and d + D / 2 of a head, which RoPE turns:  query, or the cache's keys; values as they are

`rows_of` says which rows of weight a pair is, `prepare` loads what belongs to its outputs before its sums are done, `write` stores them.

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU); kernels/kv/qkv_rope_append.py.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid

PAIRS = 8  # of a tile of 16 rows


class Outputs(NamedTuple):
    """How a kernel writes: device functions."""

    rows_of: Any  # (pair, rows of weight) -> (low, high); pairs beyond the last repeat it
    begin: Any  # (arrays) -> what all pairs need, once the kernels before have ended
    prepare: Any  # (arrays, token, pair) -> what belongs to a pair's outputs; token: what begin gave
    write: Any  # (arrays, prepared, pair, low, high)


@cuda.jit(device=True, forceinline=True)
def begin_nothing(arrays):
    """begin of outputs that need nothing for all pairs."""
    return int32(0)


class Plain(NamedTuple):
    """Arrays: bias [N] or None, residual [N] or None, out [N]."""

    bias: Any
    residual: Any
    out: Any


@cuda.jit(device=True, forceinline=True)
def plain_column(pair):
    """The column of out that the first row of a pair gives."""
    return int32((pair >> 3) * 16 + (pair & 7))


@cuda.jit(device=True, forceinline=True)
def element(row, column):
    """An element as loaded: nothing waits for it until it is converted."""
    return row[uint32(column)]


@cuda.jit(device=True, forceinline=True)
def no_element(row, column):
    """The element of a row that is absent."""
    return float32(0)


class Addends(NamedTuple):
    """What is added to a pair's outputs."""

    low_bias: Any
    high_bias: Any
    low_residual: Any
    high_residual: Any


@functools.cache
def make_plain(has_bias: bool, has_residual: bool) -> Outputs:
    """The Outputs of Plain."""
    bias_at, residual_at = element if has_bias else no_element, element if has_residual else no_element

    @cuda.jit(device=True, forceinline=True)
    def rows_of(pair, rows):
        low = plain_column(pair)
        return min(low, int32(rows - 1)), min(int32(low + PAIRS), int32(rows - 1))

    @cuda.jit(device=True, forceinline=True)
    def prepare(arrays, token, pair):
        low, high = rows_of(pair, int32(arrays.out.shape[0]))
        biases = bias_at(arrays.bias, low), bias_at(arrays.bias, high)
        return Addends(biases[0], biases[1], residual_at(arrays.residual, low), residual_at(arrays.residual, high))

    @cuda.jit(device=True, forceinline=True)
    def write(arrays, addends, pair, low, high):
        column, columns = plain_column(pair), int32(arrays.out.shape[0])
        if column < columns:
            arrays.out[uint32(column)] = low + float32(addends.low_bias) + float32(addends.low_residual)
        if int32(column + PAIRS) < columns:
            arrays.out[uint32(column + PAIRS)] = high + float32(addends.high_bias) + float32(addends.high_residual)

    return Outputs(rows_of, begin_nothing, prepare, write)


class Gated(NamedTuple):
    """Array: out [I]."""

    out: Any


@cuda.jit(device=True, forceinline=True)
def gated_rows(pair, rows):
    """A row of the gate, in the upper half of weight, and that of up."""
    low = min(int32(pair), int32((rows >> 1) - 1))
    return low, int32(low + (rows >> 1))


@cuda.jit(device=True, forceinline=True)
def prepare_gated(arrays, token, pair):
    """Nothing."""
    return pair


@cuda.jit(device=True, forceinline=True)
def write_gated(arrays, prepared, pair, low, high):
    """silu(gate) * up."""
    if pair < int32(arrays.out.shape[0]):
        arrays.out[uint32(pair)] = low * sigmoid(low) * high


class Attention(NamedTuple):
    """Arrays: bias [N] or None, positions, slot_mapping [1], cos_sin [positions, head_dim], query [1, heads, head_dim], caches [slots,
    kv_heads, head_dim]."""

    bias: Any
    positions: Any
    slot_mapping: Any
    cos_sin: Any
    query: Any
    key_cache: Any
    value_cache: Any


class Token(NamedTuple):
    """Where a token stands, in its sequence and in the cache."""

    position: Any
    slot: Any


class Turn(NamedTuple):
    """A pair's head and component, the cosine and sine of its angle, where its token lies in the cache, and its biases."""

    head: Any
    component: Any
    cosine: Any
    sine: Any
    slot: Any
    low_bias: Any
    high_bias: Any


@functools.cache
def make_attention(head_dim: int, has_bias: bool) -> Outputs:
    """The Outputs of Attention."""
    half, bias_at = head_dim // 2, element if has_bias else no_element

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
    def prepare(arrays, token, pair):
        last = (arrays.query.shape[1] + 2 * arrays.key_cache.shape[1]) * half - 1
        pair = uint32(min(int32(pair), int32(last)))
        head, component = uint32(pair // uint32(half)), uint32(pair % uint32(half))
        row = int32(head * uint32(head_dim) + component)
        cosine, sine = arrays.cos_sin[token.position, component], arrays.cos_sin[token.position, uint32(component + uint32(half))]
        low_bias, high_bias = bias_at(arrays.bias, row), bias_at(arrays.bias, row + half)
        return Turn(head, component, cosine, sine, token.slot, low_bias, high_bias)

    @cuda.jit(device=True, forceinline=True)
    def write(arrays, prepared, pair, low, high):
        heads, kv_heads = arrays.query.shape[1], arrays.key_cache.shape[1]
        head, component, cosine, sine, slot, low_bias, high_bias = prepared
        if pair >= (heads + 2 * kv_heads) * half:
            return
        a, b = low + float32(low_bias), high + float32(high_bias)
        if head < heads:
            arrays.query[0, head, component] = a * cosine - b * sine
            arrays.query[0, head, component + half] = b * cosine + a * sine
        elif slot >= 0:
            if head < heads + kv_heads:
                arrays.key_cache[slot, head - heads, component] = a * cosine - b * sine
                arrays.key_cache[slot, head - heads, component + half] = b * cosine + a * sine
            else:
                arrays.value_cache[slot, head - heads - kv_heads, component] = a
                arrays.value_cache[slot, head - heads - kv_heads, component + half] = b

    return Outputs(attention_rows, begin, prepare, write)


GATED = Outputs(gated_rows, begin_nothing, prepare_gated, write_gated)
