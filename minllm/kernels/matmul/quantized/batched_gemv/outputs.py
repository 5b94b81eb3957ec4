"""Outputs of the batched GEMV: a token's sums for a pair of weight rows become two outputs, or a gated one.

    plain   rows 16 i + j and 16 i + j + 8:  out[m, n] = sum + bias[n]
    gated   a row of the gate and that of up:  out[m, n] = silu(low) * high

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, int32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.quantized.batched_gemv.sums import Outputs
from minllm.kernels.matmul.quantized.row_pairs import PAIRS, gated_rows, plain_column


@cuda.jit(device=True, forceinline=True)
def plain_rows(pair, rows):
    """Return the two rows of a pair, eight apart; pairs past the last row repeat it."""
    low = plain_column(pair)
    return min(low, int32(rows - 1)), min(int32(low + PAIRS), int32(rows - 1))


@cuda.jit(device=True, forceinline=True)
def write_column(bias, out, token, column, value):
    """Write an output, with its bias, unless its column is past the edge."""
    if column < int32(out.shape[1]):
        out[token, column] = value if bias is None else value + float32(bias[column])


@cuda.jit(device=True, forceinline=True)
def write_plain(bias, out, token, pair, low, high):
    """Write both sums of a pair."""
    column = plain_column(pair)
    write_column(bias, out, token, column, low)
    write_column(bias, out, token, int32(column + PAIRS), high)


@cuda.jit(device=True, forceinline=True)
def write_gated(bias, out, token, pair, low, high):
    """Write silu(gate) * up."""
    write_column(bias, out, token, int32(pair), low * sigmoid(low) * high)


PLAIN, GATED = Outputs(plain_rows, write_plain), Outputs(gated_rows, write_gated)
