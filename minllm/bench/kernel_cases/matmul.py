"""The GEMM variants: FLOPs per second for many rows, bytes per second for few."""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, FLOAT32, TB_S, TFLOP_S, KernelCase, Prepared, relative_error, some_of
from minllm.kernels.matmul.arguments import MOST_ROWS_OF_FLAT
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.matmul.variants import VARIANTS

HOPPER_RUNGS = ("warpgroup", "warp_specialized", "wgmma")
SAMPLE_ROWS, SAMPLE_COLUMNS = 16, 512  # number of outputs that are recomputed on the host


def matmul_flops(m: int, n: int, k: int) -> int:
    """FLOPs of a GEMM: a multiply and an add for each of M N K terms."""
    return 2 * m * n * k


def matmul_bytes(m: int, n: int, k: int, itemsize: int) -> int:
    """Bytes to read each operand once and to write the result."""
    return (m * k + n * k + m * n) * itemsize


def matmul_case(variant: str, m: int, n: int, k: int, dtype: np.dtype = BFLOAT16) -> KernelCase:
    """The GEMM x [m, k] @ weight [n, k].T by one variant."""
    few_rows = m <= MOST_ROWS_OF_FLAT

    def prepare(ops, noise, sets):
        inputs, launches, on_host = [], [], None
        for _ in range(sets):
            x, weight = noise.array((m, k), dtype), noise.array((n, k), dtype)
            on_host = on_host or (x, weight)
            inputs.append(dict(x=ops.array(x), weight=ops.array(weight), out=ops.empty((m, n), dtype)))
            launches.append(lambda a=inputs[-1]: VARIANTS[variant](a["x"], a["weight"], a["out"], stream=ops.stream))
        rows, columns = some_of(m, SAMPLE_ROWS, noise), some_of(n, SAMPLE_COLUMNS, noise)
        expected = matmul_reference(on_host[0][rows].astype(np.float32), on_host[1][columns].astype(np.float32))
        return Prepared(
            launches,
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[np.ix_(rows, columns)], expected),
        )

    moved = matmul_bytes(m, n, k, dtype.itemsize)
    work = moved if few_rows else matmul_flops(m, n, k)
    unit = TB_S if few_rows else TFLOP_S
    return KernelCase(
        "matmul",
        "matmul",
        f"{m}x{n}x{k}, {dtype.name}",
        variant=variant,
        dtype=dtype,
        unit=unit,
        work=work,
        set_bytes=moved,
        prepare=prepare,
        peers=("cuBLAS",),
    )


def cases() -> list[KernelCase]:
    """All cases of GEMM, named M x N x K: tokens x output features x input features."""
    ladder = [matmul_case("naive", 2048, 2048, 2048)]
    for size in (2048, 4096):
        ladder += [matmul_case(variant, size, size, size) for variant in ("tiled", "vectorized", "tensor_core", *HOPPER_RUNGS)]
    ladder += [matmul_case(variant, 2048, 2048, 2048, FLOAT32) for variant in ("naive", "tiled", "vectorized")]
    ladder += [matmul_case(variant, 8192, 8192, 8192) for variant in HOPPER_RUNGS]
    for n, k in ((6144, 4096), (28672, 4096), (4096, 14336)):
        ladder += [matmul_case(variant, 2048, n, k) for variant in ("tensor_core", "wgmma")]
    one_row = [(6144, 4096), (28672, 4096), (4096, 14336), (16384, 2048), (128256, 2048)]
    decoding = [*(matmul_case("gemv", 1, n, k) for n, k in one_row), matmul_case("gemv", 8, 6144, 4096)]
    batches = [matmul_case("flat", m, n, k) for n, k in one_row[:3] for m in (1, 8, 16, 32, 64, 128, 256)]
    batches += [matmul_case("fixed_order", m, n, k) for n, k in one_row[:3] for m in (1, 64, 256, 2048)]
    batches += [matmul_case("wgmma", m, n, k) for n, k in one_row[:3] for m in (128, 256)]
    cases = [*ladder, *decoding, *batches]
    return cases + [default_case(name) for name in VARIANTS if name not in {case.variant for case in cases}]


def default_case(variant: str, rows: int = 2048, n: int = 2048, k: int = 2048) -> KernelCase:
    """The case of a variant without a case of its own, with at most the rows that it supports."""
    most_rows = VARIANTS.entry(variant).most_rows
    return matmul_case(variant, rows if most_rows is None else min(rows, most_rows), n, k)
