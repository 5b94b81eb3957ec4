"""What becomes of the two sums of a pair of rows of weight: outputs with bias and residual, gate times up, or rotated queries and keys.

    Plain      rows 16 i + j and 16 i + j + 8:  out[n] = sum + bias[n] + residual[n]
    Gated      a row of the gate and its of up:  out[n] = silu(low) * high
    Attention  components d and d + D / 2 of a head, which RoPE turns:  query, or the cache's keys; values as they are

`prepare` loads what belongs to a pair before its sums are done, `write` stores; `make_pair_rows` says which rows a pair is.

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU); kernels/kv/qkv_rope_append.py.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32

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
    """Arrays: bias [N] or None, residual [1, N] or None, out [1, N]."""

    bias: Any
    residual: Any
    out: Any


@cuda.jit(device=True, forceinline=True)
def plain_rows(pair, rows):
    """Rows j and j + 8 of a tile of 16."""
    low = (pair >> 3) * 16 + (pair & 7)
    return min(low, rows - 1), min(low + PAIRS, rows - 1)


@cuda.jit(device=True, forceinline=True)
def addend(bias, residual, column, columns):
    """What is added to an output."""
    value, column = float32(0), min(column, columns - 1)
    if bias is not None:
        value += float32(bias[column])
    if residual is not None:
        value += float32(residual[0, column])
    return value


@cuda.jit(device=True, forceinline=True)
def prepare_plain(arrays, token, pair):
    """(addend of row low, of row high)."""
    column, columns = (pair >> 3) * 16 + (pair & 7), int32(arrays.out.shape[1])
    low = addend(arrays.bias, arrays.residual, column, columns)
    return low, addend(arrays.bias, arrays.residual, column + PAIRS, columns)


@cuda.jit(device=True, forceinline=True)
def write_plain(arrays, prepared, pair, low, high):
    """Both outputs, unless they are beyond the last."""
    column = (pair >> 3) * 16 + (pair & 7)
    if column < arrays.out.shape[1]:
        arrays.out[0, column] = low + prepared[0]
    if column + PAIRS < arrays.out.shape[1]:
        arrays.out[0, column + PAIRS] = high + prepared[1]


class Gated(NamedTuple):
    """Array: out [1, I]."""

    out: Any


@cuda.jit(device=True, forceinline=True)
def gated_rows(pair, rows):
    """A row of the gate, in the upper half of weight, and that of up."""
    low = min(pair, (rows >> 1) - 1)
    return low, low + (rows >> 1)


@cuda.jit(device=True, forceinline=True)
def prepare_gated(arrays, token, pair):
    """Nothing."""
    return pair


@cuda.jit(device=True, forceinline=True)
def write_gated(arrays, prepared, pair, low, high):
    """silu(gate) * up."""
    if pair < arrays.out.shape[1]:
        arrays.out[0, pair] = low * sigmoid(low) * high


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
def make_attention(head_dim: int) -> Outputs:
    """The Outputs of Attention."""
    half = head_dim // 2

    @cuda.jit(device=True, forceinline=True)
    def attention_rows(pair, rows):
        pair = min(pair, (rows >> 1) - 1)
        low = pair + pair // half * half
        return low, low + half

    @cuda.jit(device=True, forceinline=True)
    def begin(arrays):
        ptx.griddepcontrol_wait()
        return Token(int32(arrays.positions[0]), int32(arrays.slot_mapping[0]))

    @cuda.jit(device=True, forceinline=True)
    def prepare(arrays, token, pair):
        last = (arrays.query.shape[1] + 2 * arrays.key_cache.shape[1]) * half - 1
        pair = min(pair, last)
        head, component = pair // half, pair % half
        row = head * head_dim + component
        cosine, sine = arrays.cos_sin[token.position, component], arrays.cos_sin[token.position, half + component]
        low_bias, high_bias = addend(arrays.bias, None, row, row + 1), addend(arrays.bias, None, row + half, row + half + 1)
        return Turn(head, component, cosine, sine, token.slot, low_bias, high_bias)

    @cuda.jit(device=True, forceinline=True)
    def write(arrays, prepared, pair, low, high):
        heads, kv_heads = arrays.query.shape[1], arrays.key_cache.shape[1]
        head, component, cosine, sine, slot, low_bias, high_bias = prepared
        if pair >= (heads + 2 * kv_heads) * half:
            return
        a, b = low + low_bias, high + high_bias
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


PLAIN = Outputs(plain_rows, begin_nothing, prepare_plain, write_plain)
GATED = Outputs(gated_rows, begin_nothing, prepare_gated, write_gated)
