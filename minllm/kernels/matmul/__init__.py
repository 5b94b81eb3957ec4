"""GEMM, the matrix product of every linear layer: its equation and a ladder of kernels, from one thread per output to tensor cores.

    reference     the equation in NumPy
    naive         one thread per output element
    tiled         tiles in shared memory, a block of outputs in each thread's registers
    vectorized    the same with 128-bit loads, and the next tile in flight
    tensor_core   mma.sync fed by asynchronous copies: half precision, many rows
    wgmma         Hopper: TMA and tensor cores driven by specialised warps, with fused epilogues
    gemv          up to 8 rows, memory-bound: decoding
    flat          up to 256 rows, memory-bound, on tensor cores: decoding a batch

All variants have one signature, `VARIANTS[name](x, weight, out, bias=None, stream=None)`, and compute out [M, N] = x [M, K] @ weight [N,
K].T + bias [N] with float32 sums; `matmul` chooses one by shape, from measurements on the GPU (dataflow.py).
on the GPU (dataflow.py).
"""

import numpy as np

from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments
from minllm.kernels.matmul.dataflow import choose_dataflow, table_of
from minllm.kernels.matmul.flat.flat import matmul_flat
from minllm.kernels.matmul.gemv.gemv import MAX_ROWS_OF_X, matmul_gemv
from minllm.kernels.matmul.naive import matmul_naive
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.matmul.tensor_core import matmul_tensor_core
from minllm.kernels.matmul.tiled import matmul_tiled
from minllm.kernels.matmul.vectorized import matmul_vectorized
from minllm.kernels.matmul.wgmma.wgmma import fits, has_wgmma, matmul_silu_and_multiply, matmul_wgmma
from minllm.runtime.device import describe_device
from minllm.runtime.kernel import check

VARIANTS = {
    "naive": matmul_naive,
    "tiled": matmul_tiled,
    "vectorized": matmul_vectorized,
    "tensor_core": matmul_tensor_core,
    "wgmma": matmul_wgmma,
    "gemv": matmul_gemv,
    "flat": matmul_flat,
}
FEWEST_ROWS_OF_WGMMA = 65  # fewer rows would leave half of every tile of 128 rows empty


def choose(m: int, n: int, k: int, dtype: np.dtype | type | str, gpu: str | None = None, hopper: bool = False) -> str:
    """The variant for x [m, k] and weight [n, k] of `dtype`.

    gpu: the driver's name of the GPU; None for one without measurements. hopper: the GPU has wgmma, and the arrays are aligned for it.

    float32 takes gemv and tiles, because tensor cores would round its inputs to 10 bits. Half precision follows the GPU's table for m rows;
    flat needs rows of k elements that begin on multiples of 16 bytes.
    """
    dataflow = choose_dataflow(m, n, k, table_of(gpu))
    if np.dtype(dtype) in HALF_DTYPES and dataflow == "flat" and k % 8 == 0:
        return "flat"
    return "gemv" if m <= MAX_ROWS_OF_X else choose_for_many_rows(m, dtype, hopper)


def choose_for_many_rows(m: int, dtype: np.dtype | type | str, hopper: bool = False) -> str:
    """The variant for shapes that are compute-bound."""
    if np.dtype(dtype) not in HALF_DTYPES:
        return "vectorized"
    return "wgmma" if hopper and m >= FEWEST_ROWS_OF_WGMMA else "tensor_core"


def can_use_wgmma(x, weight) -> bool:
    """Whether wgmma may be chosen for these arrays; not in the simulator, where tensor_core runs faster."""
    return not isinstance(x, np.ndarray) and has_wgmma(x) and fits(x, weight)


def choose_for(x, weight) -> str:
    """The variant for these arrays, on the device that holds them."""
    (m, k), n = x.shape, weight.shape[0]
    return choose(m, n, k, x.dtype, gpu_name(x), can_use_wgmma(x, weight))


def gpu_name(array) -> str | None:
    """The driver's name of the GPU that holds an array; None for the simulator's."""
    return None if isinstance(array, np.ndarray) else describe_device(0).name


def matmul(x, weight, out, bias=None, stream=None, variant: str = "auto") -> None:
    """Write x @ weight.T + bias into `out`, with the named variant or one chosen by shape.

    x [M, K], weight [N, K]: one dtype of float32, float16, bfloat16. out [M, N] and bias [N]: that dtype or float32. NumPy arrays run in
    the simulator, device arrays on the GPU. Raises KernelArgumentError for an unknown variant and for shapes or dtypes that do not fit
    (see `check_arguments`).
    """
    known = ("auto", *VARIANTS)
    check(variant in known, f"there is no matmul variant {variant!r}: choose one of {', '.join(known)}")
    if variant == "auto":
        check_arguments(x, weight, out, bias)
        variant = choose_for(x, weight)
    VARIANTS[variant](x, weight, out, bias, stream)


__all__ = [
    "HALF_DTYPES",
    "MAX_ROWS_OF_X",
    "VARIANTS",
    "check_arguments",
    "choose",
    "can_use_wgmma",
    "choose_for",
    "choose_for_many_rows",
    "gpu_name",
    "matmul",
    "matmul_flat",
    "matmul_gemv",
    "matmul_naive",
    "matmul_reference",
    "matmul_silu_and_multiply",
    "matmul_tensor_core",
    "matmul_tiled",
    "matmul_vectorized",
    "matmul_wgmma",
]
