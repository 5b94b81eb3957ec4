"""What the compilation tests of the matrix product compile, here and on a device: kernels, argument types and targets, by name."""

import numpy as np

from minllm.kernels.matmul import gemv, tensor_core, tiled
from minllm.kernels.matmul.naive import matmul_naive_kernel
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT16, FLOAT32

AMPERE, HOPPER = (8, 0), (9, 0)


def arguments(dtype, out_dtype=None, bias=True):
    """x, weight, bias and out of these dtypes: only types matter here."""
    matrix = np.zeros((1, 1), dtype)
    return matrix, matrix, np.zeros(1, dtype) if bias else None, np.zeros((1, 1), out_dtype or dtype)


def compilations():
    """{name: (kernel, arguments, compute capability)}."""
    found = {}
    for target in (AMPERE, HOPPER):
        for dtype in DTYPES:
            where = f"{dtype}, {target[0]}.{target[1]}"
            found[f"naive, {where}"] = matmul_naive_kernel, arguments(dtype), target
            found[f"tiled, {where}"] = tiled.tiled_kernel(*tiled.TILES[0]), arguments(dtype), target
            kernel = gemv.gemv_kernel(1, 2048, dtype.name, gemv.choose_tiling(1, 128256, 2048), True)
            found[f"gemv, {where}"] = kernel, arguments(dtype, FLOAT32, False), target
        for dtype in (BFLOAT16, FLOAT16):
            kernel = tensor_core.tensor_core_kernel(tensor_core.TILINGS[0], dtype.name, True, True)
            found[f"tensor_core, {dtype}, {target[0]}.{target[1]}"] = kernel, arguments(dtype), target
    for tiling in tensor_core.TILINGS[1:]:
        kernel = tensor_core.tensor_core_kernel(tiling, "bfloat16", True, True)
        found[f"tensor_core {'x'.join(map(str, tiling))}"] = kernel, arguments(BFLOAT16), HOPPER
    kernel = tensor_core.tensor_core_kernel(tensor_core.TILING_BY_ELEMENTS, "float16", False, False)
    found["tensor_core by elements"] = kernel, arguments(FLOAT16, FLOAT32), HOPPER
    found["tiled, small"] = tiled.tiled_kernel(*tiled.TILES[1]), arguments(BFLOAT16), HOPPER
    found["gemv by elements"] = gemv.gemv_kernel(8, 2047, "bfloat16", gemv.choose_tiling(8, 2048, 2047), False), arguments(BFLOAT16), HOPPER
    for m in (1, 4, 8):  # the most rows of each tiling
        kernel = gemv.gemv_kernel(m, 8200, "bfloat16", gemv.choose_tiling(m, 2048, 8200), True)  # K is not whole steps
        found[f"gemv, {m} rows"] = kernel, arguments(BFLOAT16), HOPPER
    return found
