"""GEMV on tensor cores: up to 16 rows of x times int4 or NF4 weights, or one row times int8 or fp8 too.

    out = norm(x) @ weight.T + bias + residual          gated: silu(norm(x) @ gate.T) * (norm(x) @ up.T)
    attention: query, keys and values are rows of norm(x) @ weight.T; query and keys are rotated, keys and values appended to the cache

2 M N K FLOPs on N K / 2 or N K bytes of codes, each read once: memory-bound. A GEMV on CUDA cores is limited not by HBM but by the
instructions that turn codes into numbers (../int4.py: 240 instructions of a warp per 512 bytes of int4). Tensor cores take over a part of
this work: they multiply and add, also across lanes, and they take 8-bit codes unchanged. That leaves some 50 instructions per 512 bytes of
int4 in groups of 128, half of what an H200's HBM leaves time for, and 10 for int8 (counted in the machine code for 9.0).

One row of x fills one of mma.sync's eight columns, but the kernel is memory-bound and has tensor-core throughput to spare. Norm,
quantisation of x, residual, SiLU, RoPE and the cache append are part of its kernel, so a layer of a decode step is four of these kernels
and attention. Two to sixteen rows take clusters of blocks, which only Hopper has, and nothing but bias, residual and SiLU.

    tiling.py                               how the work is divided
    kernel.py                               which warp multiplies what, and when it is loaded
    loads.py                                a warp's walk over K
    products.py, one_row.py, several_rows.py, codes.py    codes as operand A (quantization/decoder.py), and the scales of the sums
    x.py, normed_x.py                       x as operand B: several rows; one, normalised or quantised
    sums.py, outputs.py                     sums of the warps that divide K; the outputs made from them

Source: Frantar et al. 2024, "MARLIN"; PTX ISA, "mma".
"""

import math

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, address, ceil_div, check_array, rows_begin_on
from minllm.kernels.kv.append_pair import attention_of
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_norm, has_wgmma
from minllm.kernels.matmul.qkv_arguments import check_qkv
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, MOST_CODE_BYTES, check_out
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import dynamic_bytes, make_products, tensor_core_gemv_kernel
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import GATED, Gated, Outputs, Plain, make_attention, make_plain
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import MOST_ROWS, PAIRS, TensorCoreGemvTiling, choose_tiling
from minllm.kernels.quantization.decoder import Format
from minllm.kernels.quantization.int4 import INT4
from minllm.kernels.vector import VECTOR_BYTES
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK, capability_here, is_assumed, sms_here
from minllm.runtime.kernel import check, launch


def fits(found: Format, x, weight) -> bool:
    """Whether the kernel supports these arrays on this GPU: rows of 16 bits, of whole steps, aligned to 16 bytes.

    More than one row, up to 16: int4 or NF4, on Hopper, and a block's part of x fits in shared memory.
    """
    m, k = x.shape
    aligned = 1 <= m <= most_rows(found) and x.dtype in HALF_DTYPES and k % found.inputs == 0 and rows_begin_on(16, x, weight.codes)
    if not aligned or math.prod(weight.codes.shape) >= MOST_CODE_BYTES or not found.takes(k, weight):
        return False
    if m == 1:
        return isinstance(x, np.ndarray) or capability_here() >= found.since
    return (
        has_wgmma(weight.codes)
        and choose_tiling(found, m, weight.codes.shape[0], k).shared_bytes(k // found.inputs) <= SHARED_BYTES_PER_BLOCK
    )


def most_rows(found: Format) -> int:
    """Return the most rows of x for a format."""
    return 1 if found.mma is None else MOST_ROWS


def check_fits(found: Format, x, weight, norm=None) -> None:
    """Raise KernelArgumentError unless x and weight fit (see `fits`), and norm is None or of x's dtype and length, for one row."""
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    rows, more = ("one row", "") if found.mma is None else (f"up to {MOST_ROWS} rows", ", for more than one row 9.0")
    groups = ", groups of 32, 64 or multiples of 128" if found is INT4 else ""
    check(
        fits(found, x, weight),
        f"x is {x.dtype} {list(x.shape)}, codes are {list(weight.codes.shape)}; the GEMV on tensor cores over {found.name} takes {rows} "
        f"of float16 or bfloat16 of a multiple of {found.inputs} inputs, rows that begin on multiples of 16 bytes{groups}, and compute "
        f"capability {found.since} or later{more}: take gemv, or widen the weight",
    )
    check_array("codes", weight.codes, CODE_DTYPES, N=None, bytes=x.shape[1] // found.per_byte)
    check_norm(norm, x)
    check(norm is None or x.shape[0] == 1, f"x has {x.shape[0]} rows; the GEMV on tensor cores normalises one: normalise them first")
    begins = norm is None or address(norm) % VECTOR_BYTES == 0
    check(begins, "norm does not begin on a multiple of 16 bytes, which loads of 16 bytes need: copy it")


def run(found: Format, x, norm, weight, outputs: Outputs, arrays, pairs: int, epsilon: float, stream, tiling) -> None:
    """Check the tiling and launch."""
    n, (m, k), dtype = weight.codes.shape[0], x.shape, x.dtype.name
    tiling = TensorCoreGemvTiling(*(tiling or choose_tiling(found, m, n, k)))
    tiling.check(m)
    check(tiling.tokens == 1 or (norm is None and found.mma is not None), f"{tiling}: norms and 8-bit codes take one token")
    products = make_products(found, found.kind(weight, k), k, tiling, dtype)
    chosen, arguments = (
        tensor_core_gemv_kernel(tiling, products, outputs),
        (x, norm, found.arrays(weight), arrays, n, pairs, float(epsilon)),
    )
    shared_bytes, wanted = dynamic_bytes(tiling, products), ceil_div(ceil_div(pairs, PAIRS), tiling.tiles)
    if tiling.tokens == 1:
        launch(chosen, min(wanted, sms_here() * tiling.blocks), tiling.threads, arguments, stream, shared_bytes)
        return
    needed = tiling.shared_bytes(k // found.inputs)
    check(needed <= SHARED_BYTES_PER_BLOCK, f"{tiling}: {needed} bytes of shared memory; a block has {SHARED_BYTES_PER_BLOCK}")
    clusters = min(wanted, clusters_at_a_time(chosen, tiling, arguments, shared_bytes))
    launch(chosen, clusters * tiling.cluster, tiling.threads, arguments, stream, shared_bytes, (tiling.cluster, 1, 1))


def clusters_at_a_time(kernel, tiling: TensorCoreGemvTiling, arguments, shared_bytes: int) -> int:
    """Return how many clusters can run at a time: one more would wait until another has ended.

    In the simulator and a dry run the number follows from the SMs alone.
    """
    if isinstance(arguments[0], np.ndarray) or is_assumed():
        return max(1, sms_here() * tiling.blocks // tiling.cluster)
    return kernel[tiling.cluster, tiling.threads, None, shared_bytes, (tiling.cluster, 1, 1)].clusters_at_a_time(*arguments)


def make_gemv(found: Format):
    """The launcher of out = norm(x) @ weight.T + bias + residual."""

    def tensor_core_gemv(x, weight, out, bias=None, stream=None, tiling=None, norm=None, epsilon=0.0, residual=None) -> None:
        """Write norm(x) @ weight.T + bias + residual into `out` [M, N].

        x [M, K], M <= 16, for W8A8 M = 1, float16 or bfloat16; weight [N, K] in the launcher's format. out and bias [N] have x's dtype or
        float32; residual [M, N] has the dtype of x or out, and may be `out`. norm [K] and epsilon: an RMSNorm of one row x, none if norm is
        None. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see `fits`).
        """
        check_fits(found, x, weight, norm)
        n = weight.codes.shape[0]
        check_out(x, out, bias, n, False)
        if residual is not None:
            check_array("residual", residual, (x.dtype, out.dtype), M=x.shape[0], N=n)
        if n:
            outputs, pairs = make_plain(bias is not None, residual is not None), ceil_div(n, 2 * PAIRS) * PAIRS
            run(found, x, norm, weight, outputs, Plain(bias, residual, out), pairs, epsilon, stream, tiling)

    return tensor_core_gemv


def make_gated_gemv(found: Format):
    """The launcher of out = silu(gate) * up."""

    def gated_tensor_core_gemv(x, gate_up, out, stream=None, tiling=None, norm=None, epsilon=0.0) -> None:
        """Write silu(norm(x) @ gate.T) * (norm(x) @ up.T) into `out` [M, I].

        gate_up: a weight [2 I, K], the gate's rows first. gate and up are not rounded before they are multiplied. Raises as
        tensor_core_gemv does.
        """
        check_fits(found, x, gate_up, norm)
        rows = gate_up.codes.shape[0]
        check(rows % 2 == 0, f"gate_up has {rows} rows; the gate's and as many of up are an even number")
        check_out(x, out, None, rows, True)
        if out.shape[1]:
            run(found, x, norm, gate_up, GATED, Gated(out), out.shape[1], epsilon, stream, tiling)

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
        check(x.shape[0] == 1, f"x has {x.shape[0]} rows; the GEMV on tensor cores rotates one: project them, then rotate")
        n = check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, takes_codes=True)
        check_array("codes", weight.codes, CODE_DTYPES, rows=n, bytes=x.shape[1] // found.per_byte)
        arrays, form = attention_of(bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache)
        if n:
            run(found, x, norm, weight, make_attention(form), arrays, n // 2, epsilon, stream, tiling)

    return tensor_core_gemv_qkv
