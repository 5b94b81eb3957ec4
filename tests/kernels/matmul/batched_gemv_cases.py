"""Cases of the batched GEMV over int4 and NF4, for the simulator and the GPU, checked against float64."""

import contextlib
import functools
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from minllm.kernels.matmul.quantized.batched_gemv import gemv
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, assert_close, poisoned, random
from tests.kernels.matmul.tensor_core_gemv_cases import LONG_GROUPS, SMS, on, repeat, weight_and_numbers

FORMS = {"int4": gemv.INT4, "nf4": gemv.NF4}
LAUNCHERS = {name: (gemv.make_gemv(form), gemv.make_gated_gemv(form)) for name, form in FORMS.items()}
SLACK = 5e-6  # error of float32 sums, relative to the largest result
Tiling = BatchedGemvTiling


class BatchedGemvCase(NamedTuple):
    """A call with x [m, k], a weight in the format `name` and out [m, n], gated or plain; tiling None: chosen by shape.

    out_dtype: dtype of out and bias, None for x's. magnitude: factor of the normally distributed x.
    """

    name: str
    m: int
    n: int
    k: int
    dtype: np.dtype
    tiling: Tiling | None
    bias: bool = False
    out_dtype: np.dtype | None = None
    gated: bool = False
    magnitude: float = 1.0


# Fields of a Tiling: warps, splits, blocks per cluster, unroll, tokens, blocks per SM.
CASES = [
    BatchedGemvCase("int4_g128", 2, 40, 1024, BFLOAT16, Tiling(2, 2, 2, 2, 8)),  # two clusters, one of them with two tiles
    BatchedGemvCase("int4_g128", 11, 33, 640, FLOAT16, Tiling(2, 1, 4, 1, 16), bias=True),  # two chunks, five steps padded to eight
    BatchedGemvCase("int4_g128", 1, 7, 256, BFLOAT16, Tiling(1, 1, 1, 3, 8), bias=True, out_dtype=FLOAT32),  # less than a tile
    BatchedGemvCase("int4_g128", 16, 71, 256, FLOAT16, Tiling(1, 1, 1, 2, 16)),
    BatchedGemvCase("int4_g128", 8, 100, 512, BFLOAT16, Tiling(4, 4, 1, 1, 8), bias=True),
    BatchedGemvCase("int4_g128", 9, 24, 1152, FLOAT16, Tiling(1, 1, 8, 2, 16)),  # some blocks have no step
    BatchedGemvCase("int4_g128", 5, 27, 640, BFLOAT16, Tiling(4, 2, 2, 2, 8), gated=True),
    BatchedGemvCase("int4_g128", 3, 17, 2304, BFLOAT16, Tiling(4, 4, 8, 1, 8)),  # 18 steps for 32 warps
    BatchedGemvCase("int4_g64", 3, 20, 896, BFLOAT16, Tiling(2, 2, 4, 1, 8), out_dtype=FLOAT32),
    BatchedGemvCase("int4_g64", 16, 17, 512, FLOAT16, Tiling(2, 1, 2, 2, 16), bias=True, out_dtype=FLOAT32),
    BatchedGemvCase("int4_g64", 8, 40, 384, BFLOAT16, Tiling(1, 1, 2, 4, 8), gated=True),
    BatchedGemvCase("int4", 2, 35, 384, BFLOAT16, Tiling(2, 2, 2, 3, 8), bias=True),
    BatchedGemvCase("int4", 13, 16, 128, FLOAT16, Tiling(1, 1, 1, 1, 16)),  # a single step
    BatchedGemvCase("int4", 8, 50, 640, BFLOAT16, Tiling(1, 1, 1, 4, 8)),  # two chunks, five steps padded to eight
    BatchedGemvCase("int4_zeros", 5, 35, 384, BFLOAT16, Tiling(2, 2, 1, 2, 8)),
    BatchedGemvCase("int4_zeros", 2, 20, 256, FLOAT16, Tiling(4, 4, 1, 1, 8), gated=True),  # two warps have no step
    BatchedGemvCase("int4_g128_zeros", 11, 19, 768, FLOAT16, Tiling(4, 2, 2, 1, 16), bias=True),
    BatchedGemvCase("int4, minimums", 9, 23, 512, BFLOAT16, Tiling(4, 4, 1, 1, 16)),
    BatchedGemvCase("int4, minimums", 3, 40, 512, FLOAT16, Tiling(1, 1, 4, 1, 8), gated=True),
    BatchedGemvCase("int4, minimums", 16, 35, 768, BFLOAT16, Tiling(2, 1, 8, 1, 16), bias=True),
    BatchedGemvCase(LONG_GROUPS + "256", 5, 23, 768, BFLOAT16, Tiling(2, 2, 2, 2, 8)),
    BatchedGemvCase(LONG_GROUPS + "640", 9, 19, 640, FLOAT16, Tiling(2, 1, 4, 1, 16), bias=True),  # one group per row
    BatchedGemvCase("nf4", 2, 35, 384, BFLOAT16, Tiling(2, 2, 1, 2, 8), bias=True),
    BatchedGemvCase("nf4", 11, 13, 384, FLOAT16, Tiling(1, 1, 4, 1, 16), out_dtype=FLOAT32),
    BatchedGemvCase("nf4", 16, 40, 1152, BFLOAT16, Tiling(2, 1, 2, 3, 16)),  # two chunks, nine steps padded to twelve
    BatchedGemvCase("nf4", 8, 25, 384, BFLOAT16, Tiling(1, 1, 2, 2, 8), gated=True),
    BatchedGemvCase("nf4, not nested", 3, 30, 512, BFLOAT16, Tiling(4, 2, 2, 1, 8)),
    BatchedGemvCase("nf4, not nested", 16, 55, 128, FLOAT16, Tiling(1, 1, 1, 1, 16), bias=True),
    BatchedGemvCase("nf4, not nested", 9, 20, 1152, BFLOAT16, Tiling(2, 2, 4, 2, 16), gated=True),
    BatchedGemvCase("nf4, odd first block", 5, 21, 1024, BFLOAT16, Tiling(2, 2, 1, 4, 8)),
    BatchedGemvCase("nf4, odd first block", 16, 19, 1152, FLOAT16, Tiling(2, 1, 8, 1, 16)),
    BatchedGemvCase("int4_g128", 2, 140, 512, BFLOAT16, Tiling(2, 2, 2, 1, 8)),  # five and four tiles per cluster: buffers alternate
    BatchedGemvCase("int4_g128", 3, 235, 256, FLOAT16, Tiling(4, 1, 2, 1, 8, 1), bias=True),  # four tiles at a time, four times
    BatchedGemvCase("nf4", 13, 150, 384, BFLOAT16, Tiling(1, 1, 4, 1, 16)),  # the only cluster has ten tiles, all for the same warp
    *(  # the largest and the smallest x that int4 multiplies without loss in bfloat16
        BatchedGemvCase(name, 2, 17, 384, BFLOAT16, Tiling(2, 2, 2, 1, 8), out_dtype=FLOAT32, magnitude=magnitude)
        for name in ("int4_g128", "int4_zeros", "int4, minimums")
        for magnitude in (1e18, 1e-17)
    ),
]
CHOSEN_CASES = [BatchedGemvCase("int4", 2, 40, 128, BFLOAT16, None), BatchedGemvCase("nf4", 9, 24, 256, FLOAT16, None)]
LARGE_CASES = [
    BatchedGemvCase(name, m, n, k, dtype, None, **others)
    for name in ("int4_g128", "int4_zeros", "int4, minimums", "int4_g64", "nf4", "nf4, not nested")
    for n, k, dtype, others in (
        (6144, 4096, BFLOAT16, dict(bias=True)), (4096, 4096, FLOAT16, dict(out_dtype=FLOAT32)), (14336, 4096, BFLOAT16, dict(gated=True)),
        (4096, 14336, BFLOAT16, {}), (3072, 2048, FLOAT16, dict(bias=True)), (2048, 8192, BFLOAT16, dict(out_dtype=FLOAT32)),
        (1003, 2176, BFLOAT16, dict(bias=True)),
    )
    for m in (2, 8, 13, 16)
]  # fmt: skip


def launchers_of(name):
    """Return the launchers (plain, gated) of a case's format."""
    return LAUNCHERS[next(form for form in FORMS if name.startswith(form))]


@functools.lru_cache(maxsize=1)
def weight_of(name, rows, k, dtype):
    """Return (weight, float64 numbers of its distinct rows); cached, as successive cases may differ only in x."""
    return weight_and_numbers(BatchedGemvCase(name, 1, rows, k, dtype, None), rows)


def on_sms(sms, case):
    """Return a context in which a case with its own tiling runs as on a GPU of `sms` SMs.

    On few SMs a cluster has several tiles.
    """
    return patch.object(gemv, "sms_here", lambda: sms) if case.tiling else contextlib.nullcontext()


def check_batched_gemv(case, device, sms=SMS):
    """Check that the result is within one rounding and the error of the sums of the float64 result; return it."""
    x, out_dtype = random((case.m, case.k), case.dtype, 0, case.magnitude), np.dtype(case.out_dtype or case.dtype)
    bias = random((case.n,), out_dtype, 2) if case.bias else None
    rows = 2 * case.n if case.gated else case.n
    weight, numbers = weight_of(case.name, rows, case.k, case.dtype)
    out, (plain, gated) = poisoned(device, (case.m, case.n), out_dtype), launchers_of(case.name)
    arguments = device.array(x), on(device, weight), out.array
    with on_sms(sms, case):
        if case.gated:
            gated(*arguments, tiling=case.tiling)
        else:
            plain(*arguments, None if bias is None else device.array(bias), tiling=case.tiling)
    expected = repeat(numbers @ x.astype(np.float64).T, rows).T
    if case.gated:
        gate, up = np.split(expected, 2, axis=1)
        expected = gate / (1 + np.exp(-gate)) * up
    if case.bias:
        expected = expected + bias.astype(np.float64)
    result = out.result()
    assert_close(result, expected, out_dtype, slack=SLACK)
    return result
