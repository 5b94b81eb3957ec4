"""Cases of the tensor-core GEMV over quantised weights, for the simulator and the GPU, checked against float64."""

import contextlib
import dataclasses
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import TensorCoreGemvTiling
from minllm.kernels.rope.rotate import rope_reference, rope_table
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.nf4 import BLOCK, NESTED_BLOCK, quantize_blocks
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, Guarded, assert_close, bits, poisoned, random

EPSILON = 1e-5
FORMS = {"int4": gemv.INT4, "nf4": gemv.NF4, "int8": gemv.INT8, "fp8": gemv.FP8}
LAUNCHERS = {name: (gemv.make_gemv(form), gemv.make_gated_gemv(form), gemv.make_qkv_gemv(form)) for name, form in FORMS.items()}
SLACK = {"int8": 1e-6, "fp8": 1e-5}  # error of float32 sums and scales, relative to the largest result
SLACK_OF_NUMBERS = 2e-5  # the same for 16-bit x: codes are multiplied with an offset, which is subtracted from the sums
DIFFERENT_ROWS = 3 * NESTED_BLOCK  # rows of a large weight repeat with this period, a period of NF4's nested scales too
LONG_GROUPS = "int4, groups of "  # prefix of formats with groups longer than a step; the inputs of a group follow
SMS = 2  # number of SMs that small cases are launched for, so that a block computes several tiles
Tiling = TensorCoreGemvTiling


class GemvCase(NamedTuple):
    """A call with x [1, k], a weight in the format `name` and out [1, n], gated or plain; tiling None: chosen by shape.

    residual: "", "apart", or "in place" if it is `out`. out_dtype: dtype of out, bias and residual, None for x's. magnitude: factor of the
    normally distributed x.
    """

    name: str
    n: int
    k: int
    dtype: np.dtype
    tiling: Tiling | None
    norm: bool = False
    bias: bool = False
    residual: str = ""
    out_dtype: np.dtype | None = None
    gated: bool = False
    magnitude: float = 1.0


class QkvCase(NamedTuple):
    """A call for query, keys and values of x [1, k], with a weight in the format `name`; tiling None: chosen."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    k: int
    dtype: np.dtype
    tiling: Tiling | None
    bias: bool = False
    slot: int = 5


CASES = [
    GemvCase("int4_g128", 40, 640, BFLOAT16, Tiling(4, 4, 1, 2, 1), norm=True),  # one warp has two steps, three have one
    GemvCase("int4_g128", 33, 640, FLOAT16, Tiling(2, 2, 2, 2, 1), norm=True, bias=True, residual="in place"),  # five steps padded to eight
    GemvCase("int4_g128", 7, 256, BFLOAT16, Tiling(2, 1, 3, 2, 1), bias=True, out_dtype=FLOAT32),  # less than a tile; one warp has none
    GemvCase("int4_g128", 71, 256, FLOAT16, Tiling(1, 1, 2, 2, 1), residual="apart"),  # three and two tiles per block
    GemvCase("int4_g64", 20, 896, BFLOAT16, Tiling(8, 8, 1, 2, 1), residual="in place"),  # seven steps for eight warps
    GemvCase("int4_g64", 17, 512, FLOAT16, Tiling(4, 2, 2, 2, 1), norm=True, residual="apart", out_dtype=FLOAT32),
    GemvCase("int4", 35, 384, BFLOAT16, Tiling(2, 2, 2, 2, 1), norm=True, bias=True),
    GemvCase("int4", 16, 128, FLOAT16, Tiling(1, 1, 1, 2, 1)),  # a single step
    GemvCase("int4_zeros", 35, 384, BFLOAT16, Tiling(2, 2, 2, 2, 1), norm=True, residual="in place"),
    GemvCase("int4_g128_zeros", 19, 768, FLOAT16, Tiling(4, 2, 1, 2, 1), bias=True),
    GemvCase("int4, minimums", 23, 512, BFLOAT16, Tiling(4, 4, 1, 2, 1), norm=True, residual="apart"),
    GemvCase(LONG_GROUPS + "256", 23, 768, BFLOAT16, Tiling(2, 2, 2, 2, 1), residual="in place"),
    GemvCase(LONG_GROUPS + "640", 19, 640, FLOAT16, Tiling(2, 2, 1, 2, 1), bias=True),  # one group per row
    GemvCase("nf4", 35, 384, BFLOAT16, Tiling(2, 2, 1, 2, 1), norm=True, residual="in place"),
    GemvCase("nf4", 13, 384, FLOAT16, Tiling(1, 1, 4, 2, 1), bias=True, out_dtype=FLOAT32),
    GemvCase("nf4, not nested", 30, 512, BFLOAT16, Tiling(8, 8, 1, 2, 1), norm=True),
    GemvCase("nf4, not nested", 55, 128, FLOAT16, Tiling(1, 1, 1, 2, 1), residual="apart"),
    GemvCase("int8", 40, 576, BFLOAT16, Tiling(4, 4, 2, 2, 1), norm=True, residual="in place"),  # nine steps of 64
    GemvCase("int8", 77, 320, FLOAT16, Tiling(2, 1, 2, 2, 1), bias=True, residual="apart", out_dtype=FLOAT32),
    GemvCase("int8", 5, 64, BFLOAT16, Tiling(8, 8, 1, 2, 1)),  # one step for eight warps
    GemvCase("fp8", 40, 448, BFLOAT16, Tiling(8, 8, 1, 2, 1), norm=True, bias=True),
    GemvCase("fp8", 67, 640, FLOAT16, Tiling(4, 2, 2, 2, 1), residual="in place"),
    GemvCase("fp8", 9, 192, BFLOAT16, Tiling(1, 1, 4, 2, 1), norm=True, out_dtype=FLOAT32),
    GemvCase("int4_g128", 27, 640, BFLOAT16, Tiling(4, 2, 2, 2, 1), norm=True, gated=True),
    GemvCase("int4_zeros", 20, 256, FLOAT16, Tiling(4, 4, 1, 2, 1), gated=True),
    GemvCase("int4, minimums", 9, 256, FLOAT16, Tiling(2, 1, 1, 2, 1), norm=True, gated=True),
    GemvCase("nf4", 25, 384, BFLOAT16, Tiling(1, 1, 2, 2, 1), norm=True, gated=True),
    GemvCase("nf4, not nested", 7, 256, FLOAT16, Tiling(4, 4, 1, 2, 1), gated=True),
    GemvCase("int8", 33, 320, BFLOAT16, Tiling(2, 2, 2, 2, 1), norm=True, gated=True),
    GemvCase("fp8", 17, 256, FLOAT16, Tiling(4, 2, 1, 2, 1), norm=True, gated=True),
    GemvCase("int4_g128", 19, 896, BFLOAT16, Tiling(7, 7, 1, 2, 1), norm=True),  # one step per warp
    GemvCase("int4_g128", 18, 1152, BFLOAT16, Tiling(3, 3, 3, 2, 1)),  # no two steps share a load of scales
    GemvCase("int4_g64", 9, 1152, FLOAT16, Tiling(1, 1, 4, 2, 1), residual="apart"),  # nine steps padded to twelve
    GemvCase("int4", 17, 640, BFLOAT16, Tiling(1, 1, 4, 2, 1), norm=True),  # five steps padded to eight
    GemvCase("int4_zeros", 21, 384, FLOAT16, Tiling(1, 1, 3, 2, 1)),
    GemvCase("nf4", 18, 1792, BFLOAT16, Tiling(14, 14, 1, 1, 1), norm=True),  # one step per warp
    GemvCase("nf4", 37, 896, BFLOAT16, Tiling(7, 7, 1, 2, 1), residual="in place"),
    GemvCase("nf4", 11, 1152, FLOAT16, Tiling(1, 1, 3, 2, 1), norm=True),
    GemvCase("nf4, odd first block", 21, 1024, BFLOAT16, Tiling(2, 2, 4, 2, 1)),
    GemvCase("nf4, odd first block", 37, 1152, FLOAT16, Tiling(2, 1, 2, 2, 1), norm=True),
    GemvCase("nf4, not nested", 20, 1152, BFLOAT16, Tiling(1, 1, 4, 2, 1), gated=True),
    GemvCase("int8", 18, 448, BFLOAT16, Tiling(7, 7, 1, 2, 1), norm=True),
    GemvCase("int4_g128", 140, 512, BFLOAT16, Tiling(4, 4, 1, 2, 1), norm=True),  # five and four tiles per block
    GemvCase("nf4", 115, 384, BFLOAT16, Tiling(3, 3, 1, 2, 1), residual="in place"),
    GemvCase("int8", 235, 256, BFLOAT16, Tiling(4, 2, 2, 2, 1), bias=True),  # two tiles at a time, four times
    *(  # the largest and the smallest x that int4 multiplies without loss in bfloat16
        GemvCase(name, 17, 384, BFLOAT16, Tiling(2, 2, 2, 2, 1), out_dtype=FLOAT32, magnitude=magnitude)
        for name in ("int4_g128", "int4_zeros", "int4, minimums")
        for magnitude in (1e18, 1e-20)
    ),
]
QKV_CASES = [
    QkvCase("int4_g128", 3, 2, 8, 256, BFLOAT16, Tiling(2, 2, 1, 2, 1), bias=True),
    QkvCase("int4_g64", 3, 1, 8, 256, FLOAT16, Tiling(2, 2, 2, 2, 1)),
    QkvCase("int4_zeros", 2, 1, 10, 384, BFLOAT16, Tiling(4, 4, 1, 2, 1), slot=-1),
    QkvCase("nf4", 2, 2, 8, 256, BFLOAT16, Tiling(1, 1, 2, 2, 1)),
    QkvCase("nf4, not nested", 1, 1, 6, 384, FLOAT16, Tiling(4, 4, 1, 2, 1), bias=True),
    QkvCase("int8", 4, 1, 8, 320, FLOAT16, Tiling(8, 4, 1, 2, 1), bias=True, slot=-1),
    QkvCase("fp8", 2, 1, 24, 192, BFLOAT16, Tiling(2, 1, 1, 2, 1), bias=True),
]
LARGE_NAMES = ("int4_g128", "int4_zeros", "int4, minimums", "int4_g64", "nf4", "nf4, not nested", "int8", "fp8")
LARGE_CASES = [
    GemvCase(name, n, k, dtype, None, **fused)
    for name in LARGE_NAMES
    for n, k, dtype, fused in (
        (6144, 4096, BFLOAT16, dict(norm=True)), (14336, 4096, BFLOAT16, dict(norm=True, gated=True)),
        (4096, 14336, BFLOAT16, dict(residual="in place")), (4096, 4096, FLOAT16, dict(residual="apart", out_dtype=FLOAT32)),
        (3072, 2048, BFLOAT16, dict(norm=True, bias=True)), (8192, 2048, FLOAT16, dict(norm=True, gated=True)),
        (2048, 8192, BFLOAT16, dict(residual="in place")), (1003, 2176, BFLOAT16, dict(norm=True, bias=True, residual="in place")),
        (32001, 2048, BFLOAT16, dict(norm=True, out_dtype=FLOAT32)),
    )
]  # fmt: skip
LARGE_QKV_CASES = [
    QkvCase(name, heads, 8, head_dim, k, dtype, None, bias, slot)
    for name in LARGE_NAMES
    for heads, head_dim, k, dtype, bias, slot in ((32, 128, 4096, BFLOAT16, False, 5), (32, 64, 2048, FLOAT16, True, -1))
]


def launchers_of(name):
    """Return the launchers (plain, gated, qkv) of a case's format."""
    return LAUNCHERS[next(form for form in FORMS if name.startswith(form))]


def is_of_codes(name):
    """Whether x is quantised as well (W8A8)."""
    return name in ("int8", "fp8")


def weight_and_numbers(case, rows):
    """Return (weight of this number of rows, float64 numbers of its distinct rows).

    The numbers are those of a table of NF4 rounded to x's dtype.
    """
    found = WEIGHT_FORMATS[case.name.partition(",")[0]]
    if case.name.startswith(LONG_GROUPS):
        found = dataclasses.replace(found, group_size=int(case.name.removeprefix(LONG_GROUPS)))
    matrix = random((min(rows, DIFFERENT_ROWS), case.k), FLOAT32, 1, 0.1)
    small = found.encode(matrix)
    if case.name == "int4, minimums":
        small = small._replace(minimums=(-7.3 * small.scales).astype(FLOAT16))
    if case.name == "nf4, not nested":
        small = small._replace(absmax=quantize_blocks(matrix)[1].T.copy(), nested=None)
    if case.name == "nf4, odd first block":  # so that two blocks of a step have two nested scales
        first = NESTED_BLOCK - 3
        nested = random((ceil_div(first + small.absmax.size, NESTED_BLOCK),), FLOAT32, 6, 0.01)
        small = small._replace(first_blocks=small.first_blocks + np.int32(first), nested=nested)
    multiplied = small._replace(table=small.table.astype(case.dtype).astype(FLOAT32)) if found.name == "nf4" else small
    numbers = found.dequantize(multiplied).astype(np.float64)
    return whole_weight(small, rows, case.k), numbers


def whole_weight(small, rows, k):
    """Return a weight of this number of rows that repeats the rows of a small one."""
    found = with_rows(small, lambda array: repeat(array, rows))._asdict()
    if hasattr(small, "first_blocks"):
        first, blocks = small.first_blocks[0], k // BLOCK
        nested = None if small.nested is None else repeat(small.nested, ceil_div(first + rows * blocks, NESTED_BLOCK))
        found |= dict(map=small.map, table=small.table, nested=nested, first_blocks=first + np.arange(rows, dtype=np.int32) * blocks)
    return small._replace(**found)


def with_rows(weight, change):
    """Return a weight with `change` made to each array [rows, ...], and to the transpose of each array [groups, rows]."""
    by_group = ("absmax", "zeros", "minimums", *(["scales"] if hasattr(weight, "minimums") else []))
    arrays = {name: array for name, array in weight._asdict().items() if array is not None}
    changed = {name: change(array.T).T.copy() if name in by_group else change(array) for name, array in arrays.items()}
    return weight._replace(**changed)


def repeat(array, rows):
    """Return an array with this number of rows, which repeats those of a smaller one."""
    return array[np.arange(rows) % len(array)]


def sums_of(case, x, norm, numbers, rows):
    """Return norm(x) @ weight.T in float64, [1, rows], for x as tensor cores take it.

    norm: None, or the weights of an RMSNorm.
    """
    scaled, divisor = x.astype(FLOAT32), 1.0
    if norm is not None:
        scaled, divisor = scaled * norm.astype(FLOAT32), np.sqrt(np.square(x.astype(np.float64)).mean() + EPSILON)
    if is_of_codes(case.name):
        found = WEIGHT_FORMATS[case.name]
        multiplied = found.dequantize(found.encode(scaled))
    else:
        multiplied = scaled.astype(case.dtype)
    return repeat((multiplied.astype(np.float64) @ numbers.T / divisor)[0], rows)[None]


def on(device, arrays):
    """Return a weight's arrays on the device."""
    return type(arrays)(*(None if one is None else device.array(one) for one in arrays))


def few_sms(case):
    """Return a context in which a case with its own tiling runs as on a GPU of few SMs.

    Its blocks then compute several tiles.
    """
    return patch.object(gemv, "sms_here", lambda: SMS) if case.tiling else contextlib.nullcontext()


def slack_of(case):
    """Return the allowed error of a case's sums, relative to the largest result."""
    return SLACK.get(case.name, SLACK_OF_NUMBERS)


def check_gemv(case, device):
    """Check that the result is within one rounding and the error of the sums of the float64 result; return it."""
    if case.gated:
        return check_gated(case, device)
    x, out_dtype = random((1, case.k), case.dtype, 0, case.magnitude), np.dtype(case.out_dtype or case.dtype)
    norm = random((case.k,), case.dtype, 2) if case.norm else None
    bias = random((case.n,), out_dtype, 3) if case.bias else None
    residual = random((1, case.n), out_dtype, 4) if case.residual else None
    weight, numbers = weight_and_numbers(case, case.n)
    in_place = case.residual == "in place"
    out = Guarded(device, residual) if in_place else poisoned(device, (1, case.n), out_dtype)
    given = out.array if in_place else None if residual is None else device.array(residual)
    fused = dict(norm=None if norm is None else device.array(norm), epsilon=EPSILON, residual=given, tiling=case.tiling)
    with few_sms(case):
        launchers_of(case.name)[0](device.array(x), on(device, weight), out.array, None if bias is None else device.array(bias), **fused)
    expected = sums_of(case, x, norm, numbers, case.n)
    for addend in (bias, residual):
        expected = expected if addend is None else expected + addend.astype(np.float64)
    result = out.result()
    assert_close(result, expected, out_dtype, slack=slack_of(case))
    return result


def check_gated(case, device):
    """Check silu(gate) * up as check_gemv checks a plain output; return the result."""
    x, norm = random((1, case.k), case.dtype, 0), random((case.k,), case.dtype, 2) if case.norm else None
    weight, numbers = weight_and_numbers(case, 2 * case.n)
    out = poisoned(device, (1, case.n), case.dtype)
    fused = dict(norm=None if norm is None else device.array(norm), epsilon=EPSILON, tiling=case.tiling)
    with few_sms(case):
        launchers_of(case.name)[1](device.array(x), on(device, weight), out.array, **fused)
    gate, up = np.split(sums_of(case, x, norm, numbers, 2 * case.n), 2, axis=1)
    result = out.result()
    assert_close(result, gate / (1 + np.exp(-gate)) * up, case.dtype, slack=slack_of(case))
    return result


def check_qkv(case, device):
    """Check the query, and keys and values in their slot; all other slots (if it is -1, all) are unchanged."""
    heads, kv_heads, head_dim, blocks, block_size, position = case.heads, case.kv_heads, case.head_dim, 3, 4, 11
    rows = (heads + 2 * kv_heads) * head_dim
    x, norm = random((1, case.k), case.dtype, 0), random((case.k,), case.dtype, 2)
    bias = random((rows,), case.dtype, 3) if case.bias else None
    weight, numbers = weight_and_numbers(case, rows)
    table = rope_table(32, head_dim, 100.0 ** -(np.arange(head_dim // 2) / (head_dim // 2)))
    old = random((blocks, block_size, kv_heads, head_dim), case.dtype, 5)
    query, caches = poisoned(device, (1, heads, head_dim), case.dtype), [Guarded(device, old) for _ in range(2)]
    places = [np.array([value], np.int32) for value in (position, case.slot)]
    with few_sms(case):
        launchers_of(case.name)[2](
            device.array(x), device.array(norm), EPSILON, on(device, weight), None if bias is None else device.array(bias),
            *(device.array(one) for one in (*places, table)), query.array, *(cache.array for cache in caches), tiling=case.tiling,
        )  # fmt: skip
    sums = sums_of(case, x, norm, numbers, rows) + (0 if bias is None else bias.astype(np.float64))
    sums = sums.reshape(1, -1, head_dim)
    turned = rope_reference(sums[:, : heads + kv_heads], places[0], table)
    assert_close(query.result(), turned[:, :heads], case.dtype, slack=slack_of(case))
    for cache, expected in zip(caches, (turned[:, heads:], sums[:, heads + kv_heads :]), strict=True):
        found, before = cache.result().reshape(-1, kv_heads, head_dim).copy(), old.reshape(-1, kv_heads, head_dim)
        if case.slot >= 0:
            assert_close(found[case.slot : case.slot + 1], expected, case.dtype, slack=slack_of(case))
            found[case.slot] = before[case.slot]
        np.testing.assert_array_equal(bits(found), bits(before), err_msg="a slot of another token was written")
