"""All rules that choose the GEMM variant for a call.

    rows of x      16 bits                                              float32
    few            gemv                                                 gemv, up to 8 rows
    some           flat, from a measured number of rows on              vectorized
    many           wgmma on Hopper, else tensor_core                    vectorized

The GPU's table in dataflow.py says how many rows are few, some or many. float32 never uses tensor cores, which would round its inputs to
10 bits. The rungs in ladder/ are never chosen. flat and wgmma pass rows of x and weight that do not fit 16-byte loads to their fallback
(variants.py).
"""

import numpy as np

from minllm.kernels.arguments import rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, MOST_ROWS_OF_GEMV, check_arguments
from minllm.kernels.matmul.dataflow import choose_dataflow, table_of
from minllm.kernels.matmul.variants import VARIANTS
from minllm.runtime.device import HOPPER, current_device, describe_device
from minllm.runtime.kernel import check

FEWEST_ROWS_OF_WGMMA = 65  # fewer rows would leave half of every tile of 128 rows empty


def choose(m: int, n: int, k: int, dtype: np.dtype | type | str, gpu: str | None = None, hopper: bool = False) -> str:
    """The variant for x [m, k] and weight [n, k] of `dtype`.

    gpu: the driver's name of the GPU; None if there are no measurements. hopper: the GPU has wgmma, and the arrays are aligned for it.

    Half precision follows the GPU's table for m rows; flat also needs k to be a multiple of 8, so that rows are whole 16-byte vectors.
    """
    if np.dtype(dtype) in HALF_DTYPES:
        dataflow = choose_dataflow(m, n, k, table_of(gpu))
        if dataflow == "flat" and k % 8 == 0:
            return "flat"
        if dataflow == "many rows":
            return choose_for_many_rows(m, dtype, hopper)
    return "gemv" if m <= MOST_ROWS_OF_GEMV else choose_for_many_rows(m, dtype, hopper)


def choose_for_many_rows(m: int, dtype: np.dtype | type | str, hopper: bool = False) -> str:
    """The variant for compute-bound calls."""
    if np.dtype(dtype) not in HALF_DTYPES:
        return "vectorized"
    return "wgmma" if hopper and m >= FEWEST_ROWS_OF_WGMMA else "tensor_core"


def choose_for(x, weight) -> str:
    """The variant for these arrays, on the device that holds them."""
    (m, k), n = x.shape, weight.shape[0]
    return choose(m, n, k, x.dtype, gpu_name(x), can_use_wgmma(x, weight))


def can_use_wgmma(x, weight) -> bool:
    """Whether wgmma may be chosen for these arrays; not in the simulator, where tensor_core runs faster."""
    on_hopper = not isinstance(x, np.ndarray) and current_device().compute_capability == HOPPER
    return on_hopper and rows_begin_on(16, x, weight)


def gpu_name(array) -> str | None:
    """The driver's name of the GPU that holds an array; None in the simulator."""
    return None if isinstance(array, np.ndarray) else describe_device().name


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
