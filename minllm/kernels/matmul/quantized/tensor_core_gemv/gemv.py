"""GEMV on tensor cores: one row of x times int4, NF4, int8 or fp8 weights, from residual stream to residual stream.

    out = norm(x) @ weight.T + bias + residual          gated: silu(norm(x) @ gate.T) * (norm(x) @ up.T)
    attention: query, keys and values are rows of norm(x) @ weight.T; query and keys are rotated, keys and values appended to the cache

2 N K FLOPs on N K / 2 or N K bytes of codes, each read once: memory-bound. A GEMV on CUDA cores is limited not by HBM but by the
instructions that turn codes into numbers (../int4.py: 240 instructions of a warp per 512 bytes of int4). Tensor cores take over a part of
this work: they multiply and add, also across lanes, and they take 8-bit codes unchanged. That leaves some 50 instructions per 512 bytes of
int4 in groups of 128, half of what an H200's HBM leaves time for, and 10 for int8 (counted in the machine code for 9.0).

One row of x fills one of mma.sync's eight columns, but the kernel is memory-bound and has tensor-core throughput to spare. Norm,
quantisation of x, residual, SiLU, RoPE and the cache append are part of the kernel, so a layer of a decode step is four of these kernels
and attention.

    operand.py, numbers.py, codes.py    the tensor cores' operand A: codes as numbers (quantization/decoder.py), or as they are
    activations.py                      x as operand B
    kernel.py                           which warp multiplies what, and when it is loaded
    outputs.py                          the outputs made from the sums

Source: Frantar et al. 2024, "MARLIN"; PTX ISA, "mma".
"""

import math

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array, rows_begin_on
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_norm
from minllm.kernels.matmul.qkv_arguments import check_qkv
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, MOST_CODE_BYTES, check_out
from minllm.kernels.matmul.quantized.row_pairs import PAIRS
from minllm.kernels.matmul.quantized.tensor_core_gemv.codes import make_codes_operand
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import TensorCoreGemvTiling, tensor_core_gemv_kernel
from minllm.kernels.matmul.quantized.tensor_core_gemv.numbers import make_numbers_operand
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import (
    GATED,
    Attention,
    Gated,
    Outputs,
    Plain,
    make_attention,
    make_plain,
)
from minllm.kernels.quantization.decoder import Format
from minllm.kernels.quantization.int4 import INT4
from minllm.kernels.vector import VECTOR_BYTES, address
from minllm.runtime.device import capability_here, sms_here
from minllm.runtime.kernel import check, launch


def fits(found: Format, x, weight) -> bool:
    """Whether the kernel supports these arrays on this GPU: one row of 16 bits, of whole steps, aligned to 16 bytes."""
    (m, k), supported = x.shape, isinstance(x, np.ndarray) or capability_here() >= found.since
    aligned = m == 1 and x.dtype in HALF_DTYPES and k % found.inputs == 0 and rows_begin_on(16, x, weight.codes)
    return supported and aligned and math.prod(weight.codes.shape) < MOST_CODE_BYTES and found.takes(k, weight)


def check_fits(found: Format, x, weight, norm) -> None:
    """Raise KernelArgumentError unless x and weight fit (see `fits`), and norm is None or of x's dtype and length."""
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    groups = ", groups of 32, 64 or multiples of 128" if found is INT4 else ""
    check(
        fits(found, x, weight),
        f"x is {x.dtype} {list(x.shape)}, codes are {list(weight.codes.shape)}; the GEMV on tensor cores over {found.name} takes one row "
        f"of float16 or bfloat16 of a multiple of {found.inputs} inputs, rows that begin on multiples of 16 bytes{groups}, and compute "
        f"capability {found.since} or later: take gemv, or widen the weight",
    )
    check_array("codes", weight.codes, CODE_DTYPES, N=None, bytes=x.shape[1] // found.per_byte)
    check_norm(norm, x)
    begins = norm is None or address(norm) % VECTOR_BYTES == 0
    check(begins, "norm does not begin on a multiple of 16 bytes, which loads of 16 bytes need: copy it")


def choose_tiling(found: Format, n: int, k: int) -> TensorCoreGemvTiling:
    """Return the fastest of some fifteen tilings for the weights of an 8B model on an H100, or one within 5 % of it.

    Two blocks of up to 8 warps share an SM. One block of up to 16 is faster for few outputs in 4 bits, which leave one or two tiles per SM,
    and for many outputs in 8 bits, which need no decoding. A warp has at least four steps of a tile, or two in small weights of 4 bits. Of
    the numbers of warps down to half of the most, the largest that pads K by at most 1/16 is taken, or else the one that pads least: 14 or
    7 for 14,336 inputs.
    """
    steps, is_small = k // found.inputs, n <= 4096
    most = 8 if is_small == (found.codes is not None) else 16
    splits = max(1, min(most, steps // (2 if is_small and found.codes is None else 4)))
    tilings = (tiling_of(steps, one) for one in range(splits, splits // 2, -1))
    return min(tilings, key=lambda tiling: max(tiling.padded_steps(steps), steps * 17 // 16))


def tiling_of(steps: int, splits: int) -> TensorCoreGemvTiling:
    """Return the tiling with `splits` warps per tile: two blocks of up to 8 warps per SM, or one block of more."""
    blocks = 1 if splits > 8 else 2
    return TensorCoreGemvTiling(splits * max(1, 8 // splits), splits, min(4, ceil_div(steps, splits)), blocks, blocks)


def run(found: Format, x, norm, weight, outputs: Outputs, arrays, pairs: int, epsilon: float, stream, tiling) -> None:
    """Check the tiling and launch."""
    n, k, dtype = weight.codes.shape[0], x.shape[1], x.dtype.name
    tiling = TensorCoreGemvTiling(*(tiling or choose_tiling(found, n, k)))
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    if found.codes is None:
        operand = make_numbers_operand(found, found.kind(weight, k), k, tiling, dtype)
    else:
        operand = make_codes_operand(found.codes, k, tiling, dtype)
    grid = min(ceil_div(ceil_div(pairs, PAIRS), tiling.tiles), sms_here() * tiling.per_sm)
    chosen, arguments = tensor_core_gemv_kernel(tiling, operand, outputs), (x, norm, found.arrays(weight), arrays, n, pairs, float(epsilon))
    launch(chosen, grid, tiling.threads, arguments, stream, operand.x_bytes)


def make_gemv(found: Format):
    """The launcher of out = norm(x) @ weight.T + bias + residual."""

    def tensor_core_gemv(x, weight, out, bias=None, stream=None, tiling=None, norm=None, epsilon=0.0, residual=None) -> None:
        """Write norm(x) @ weight.T + bias + residual into `out` [1, N].

        x [1, K], float16 or bfloat16; weight [N, K] in the launcher's format. out and bias [N] have x's dtype or float32; residual [1, N]
        has the dtype of x or out, and may be `out`. norm [K] and epsilon: an RMSNorm of x, none if norm is None. `tiling` overrides the
        choice by shape. Raises KernelArgumentError for anything else (see `fits`).
        """
        check_fits(found, x, weight, norm)
        n = weight.codes.shape[0]
        check_out(x, out, bias, n, False)
        if residual is not None:
            check_array("residual", residual, (x.dtype, out.dtype), M=1, N=n)
        if n:
            arrays = Plain(bias, None if residual is None else residual.reshape(-1), out.reshape(-1))
            outputs, pairs = make_plain(bias is not None, residual is not None), ceil_div(n, 2 * PAIRS) * PAIRS
            run(found, x, norm, weight, outputs, arrays, pairs, epsilon, stream, tiling)

    return tensor_core_gemv


def make_gated_gemv(found: Format):
    """The launcher of out = silu(gate) * up."""

    def gated_tensor_core_gemv(x, gate_up, out, stream=None, tiling=None, norm=None, epsilon=0.0) -> None:
        """Write silu(norm(x) @ gate.T) * (norm(x) @ up.T) into `out` [1, I].

        gate_up: a weight [2 I, K], the gate's rows first. gate and up are not rounded before they are multiplied. Raises as
        tensor_core_gemv does.
        """
        check_fits(found, x, gate_up, norm)
        rows = gate_up.codes.shape[0]
        check(rows % 2 == 0, f"gate_up has {rows} rows; the gate's and as many of up are an even number")
        check_out(x, out, None, rows, True)
        if out.shape[1]:
            run(found, x, norm, gate_up, GATED, Gated(out.reshape(-1)), out.shape[1], epsilon, stream, tiling)

    return gated_tensor_core_gemv


def make_qkv_gemv(found: Format):
    """The launcher of norm, QKV projection, RoPE and cache append."""

    def tensor_core_gemv_qkv(
        x, norm, epsilon, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, stream=None, tiling=None
    ) -> None:
        """Write the queries of x [1, hidden] into `query` [1, heads, head_dim], and its keys and values into the caches.

        Arguments as in gemv_qkv_rope_append (matmul/gemv/gemv_qkv.py); weight: in the launcher's format. Raises as tensor_core_gemv does.
        """
        check_fits(found, x, weight, norm)
        n = check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache)
        check_array("codes", weight.codes, CODE_DTYPES, rows=n, bytes=x.shape[1] // found.per_byte)
        arrays = Attention(bias, positions, slot_mapping, cos_sin, query, by_slot(key_cache), by_slot(value_cache))
        outputs, pairs = make_attention(query.shape[2], bias is not None), n // 2
        if pairs:
            run(found, x, norm, weight, outputs, arrays, pairs, epsilon, stream, tiling)

    return tensor_core_gemv_qkv
