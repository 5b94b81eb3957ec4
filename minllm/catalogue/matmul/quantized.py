"""The launches of the kernels of quantised weights: x [M, K] of b bytes an element or as codes, weight [N, K] as codes, out [M, N].

`form` is a weight's format: "int8", "fp8", "fp8_block", "int8_groups", "int4/128_zeros" (a group's size, and what is stored beside the
scales), "nf4/nested", "nf4/not_nested" or "nf4/odd_first_block" (neighbouring blocks have different nested scales). `exact`: whole numbers,
and scales and norms that are powers of two where sums would be rounded. `distinct`: rows of weight that differ; it repeats those of the
array `small`, which is faster to quantise and to multiply.
"""

import itertools
from dataclasses import replace

import numpy as np

from minllm.catalogue.launch import FP8_TARGETS, TARGETS, Launch, calls, describes, each, in_place, returns
from minllm.catalogue.matmul.places import CODED, PLAIN, cache_arrays, caches_of, in_their_places
from minllm.catalogue.matmul.quantized_moved import product_moved, qkv_moved, rows_moved, widened_moved
from minllm.catalogue.noise import WithoutContents
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.ladder.int4_naive import int4_naive
from minllm.kernels.matmul.quantized import fp8, fp8_block, group_gemv, int4, int8
from minllm.kernels.matmul.quantized import row_groups as row_groups_of_x
from minllm.kernels.matmul.quantized import rows as rows_of_x
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.kernels.quantization.fp8 import E4M3
from minllm.kernels.quantization.fp8_block import quantize_row_groups
from minllm.kernels.quantization.groups import FP8_BLOCK, NESTED_BLOCK
from minllm.kernels.quantization.int8_groups import Int8GroupWeight
from minllm.kernels.quantization.nf4 import quantize_blocks
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.quantized import Int4Format, Int8GroupFormat, Nf4Format

EPSILON = 1e-5
GROUPS, STORED = (32, 64, 128), ("", "_zeros", "_minimums")
W8A8 = ("int8", "fp8")
FORMATS = {name: WEIGHT_FORMATS[name] for name in (*W8A8, "fp8_block")}
FORMATS |= {"int8_groups": Int8GroupFormat("int8_groups", 1, group_size=32)}
FORMATS |= {f"nf4/{kind}": Nf4Format("nf4", 0.5, nested=kind != "not_nested") for kind in ("nested", "not_nested", "odd_first_block")}
FORMATS |= {f"int4/{size}": Int4Format("int4", 0.5, group_size=size) for size in (256, 640)}  # longer than a step of any kernel
FORMATS |= {
    f"int4/{size}{stored}": Int4Format("int4", 0.5, group_size=size, has_zeros=stored == "_zeros", has_minimums=stored == "_minimums")
    for size, stored in itertools.product(GROUPS, STORED)
}
DEQUANTIZE = {
    "int8": int8.widen_int8, "fp8": fp8.widen_fp8, "fp8_block": fp8_block.dequantize_fp8_block, "int4": int4.dequantize_int4,
    "int8_groups": group_gemv.dequantize_int8_groups, "nf4": group_gemv.dequantize_nf4,
}  # fmt: skip
MIXED = ("int4", "nf4", "int8_groups")  # formats whose variant wgmma is the mixed-input GEMM
SLACK = {"int8": 1e-6, "fp8": 1e-5, "fp8_block": 1e-5}  # error of float32 sums and scales, relative to the largest result
MANY = 1 << 20  # numbers of a weight
# What Hopper loses of the largest result at most: it adds 32 products of e4m3 per step and keeps some 14 bits of the sum (DeepSeek-AI 2024,
# "DeepSeek-V3 Technical Report", section 3.5.2), be it as large as the largest result in every step. Codes in blocks are added up in 128s.
LOST_PER_STEP, STEP_OF_FP8 = 2.0**-14, 32


def family(form):
    """A format without its groups: "int4" of "int4/128_zeros"."""
    return form.partition("/")[0]


def targets_of(form):
    """The GPUs whose instructions convert the format's codes."""
    return FP8_TARGETS if form.startswith("fp8") else TARGETS


def weight_of(noise, form, n, k, exact=False, gated=False):
    """A weight of noise. exact: scales of one or a power of two where a sum would show their rounding; gated: the gate's numbers are 1."""
    found = FORMATS[form]
    if isinstance(noise, WithoutContents):
        return found.without_contents(np, n, k)
    matrix = noise.array((n, k), FLOAT32, 1.0 if exact else 0.1)
    if gated and exact:
        matrix[: n // 2] = 1
    if form == "fp8_block" and not exact:  # so that the scales of blocks differ
        matrix *= np.linspace(1, 20, n, dtype=FLOAT32)[:, None]
    if form == "int8_groups":
        scales = np.full((k // 32, n), 1) if exact else np.abs(matrix[:, ::32]).T
        return Int8GroupWeight(noise.random.integers(-128, 128, (n, k), np.int8), np.ascontiguousarray(scales / 64, np.float16))
    weight = found.encode(matrix)
    if form.endswith("minimums"):
        weight = weight._replace(minimums=(-7.3 * weight.scales).astype(np.float16))
    if form == "nf4/not_nested":
        weight = weight._replace(absmax=quantize_blocks(matrix)[1].T.copy(), nested=None)
    if form == "nf4/odd_first_block":
        first = NESTED_BLOCK - 3
        nested = noise.array((-(-(first + weight.absmax.size) // NESTED_BLOCK),), FLOAT32, 0.01)
        weight = weight._replace(first_blocks=weight.first_blocks + np.int32(first), nested=nested)
    if family(form) == "nf4" and (exact or n * k > MANY):  # so that no fused multiply-add makes an absmax; one of many would be rounded
        weight = weight._replace(offsets=np.zeros_like(weight.offsets))
    if exact and family(form) == "int4":
        weight = weight._replace(scales=np.ones_like(weight.scales))
    return weight


def weights_of(noise, form, n, k, distinct, **kind):
    """The weight by name, and `small` if it repeats that one's rows."""
    small = weight_of(noise, form, min(n, distinct or n), k, **kind)
    if not distinct:
        return dict(weight=small)
    return dict(weight=weight_of(noise, form, n, k) if isinstance(noise, WithoutContents) else repeated(form, small, n, k), small=small)


def repeated(form, small, n, k):
    """A weight [n, k] that repeats the rows of a smaller one."""
    like = weight_of(WithoutContents(), form, n, k)
    whole = type(small)(*(None if one is None else repeated_to(other.shape, one) for one, other in zip(small, like, strict=True)))
    if form == "fp8_block":  # blocks holds the row of scales for each output
        return whole._replace(blocks=np.arange(n, dtype=np.int32) // FP8_BLOCK)
    if family(form) == "nf4":
        return whole._replace(first_blocks=np.arange(n, dtype=np.int32) * np.int32(whole.absmax.shape[0]))
    return whole


def repeated_to(shape, array):
    """An array of this shape that repeats a smaller one along each axis."""
    for axis, extent in enumerate(shape):
        if extent != array.shape[axis]:
            array = np.take(array, np.arange(extent) % array.shape[axis], axis)
    return array


def whole_codes(matrix, code):
    """Rows of whole numbers as codes with scales of 1, so that sums are exact."""
    codes = np.round(matrix).astype(np.int8 if code == "int8" else E4M3)
    return rows_of_x.QuantizedRows(codes.view(np.uint8), np.ones(len(codes), FLOAT32))


def quantized_rows(x, code):
    """x as QuantizedRows of this code."""
    rows = FORMATS[code].codec.quantize(x)
    return rows_of_x.QuantizedRows(rows.codes.view(np.uint8), rows.scales)


def numbers_of_codes(rows, code):
    """The codes of QuantizedRows as numbers, float64."""
    return rows.codes.view(np.int8 if code == "int8" else E4M3).astype(np.float64)


def multiplied(x, form, variant):
    """x as the variant multiplies it."""
    if variant == "tensor_core_gemv" or form not in (*W8A8, "fp8_block"):
        return x
    if form == "fp8_block":
        rows = row_groups_of_x.RowGroups(*quantize_row_groups(x))
        return numbers_of_x(rows, form).astype(x.dtype) if variant == "widened" else rows
    rows = quantized_rows(x, form)
    return rows._replace(codes=numbers_of_codes(rows, form).astype(x.dtype)) if variant == "widened" else rows


def numbers_of_x(x, form):
    """What a variant multiplies, as float64."""
    if isinstance(x, row_groups_of_x.RowGroups):
        return x.codes.view(E4M3).astype(np.float64) * np.repeat(x.scales, FP8_BLOCK, axis=1)[:, : x.codes.shape[1]]
    if isinstance(x, rows_of_x.QuantizedRows):
        codes = numbers_of_codes(x, form) if x.codes.dtype == np.uint8 else x.codes.astype(np.float64)
        return codes * x.scales[:, None]
    return x.astype(np.float64)


def rounded(values, dtype):
    """The values rounded to a dtype, as float32."""
    return values.astype(dtype).astype(FLOAT32)


def numbers_of_weight(weight, form, variant, dtype):
    """The weight's numbers as float64: tensor cores multiply tables, scales and products rounded to x's dtype."""
    found = FORMATS[form]
    if family(form) == "nf4" and variant in ("tensor_core_gemv", "wgmma"):
        weight = weight._replace(table=rounded(weight.table, dtype))
    if variant != "wgmma" or family(form) not in MIXED:
        return found.dequantize(weight).astype(np.float64)
    if family(form) == "nf4":
        absmax = found.dequantize(weight._replace(table=np.ones_like(weight.table)))
        entries = rounded(found.dequantize(weight) / absmax, dtype)
        return rounded(entries * rounded(absmax, dtype), dtype).astype(np.float64)
    floats = {name: array for name, array in weight._asdict().items() if name in ("scales", "minimums") and array is not None}
    floats = {name: rounded(array, dtype) for name, array in floats.items()}
    return rounded(found.dequantize(weight._replace(**floats)), dtype).astype(np.float64)


def sums_of(x, weight, norm, form, variant, dtype, small=None):
    """norm(x) @ weight.T in float64; a GEMV on tensor cores multiplies x * norm, rounded or quantised, and divides the sums."""
    if small is not None:
        sums = sums_of(x, small, norm, form, variant, dtype)
        return np.take(sums, np.arange(len(weight.codes)) % sums.shape[1], axis=1)
    numbers = numbers_of_weight(weight, form, variant, dtype)
    if variant != "tensor_core_gemv":
        return numbers_of_x(x, form) @ numbers.T
    scaled, divisor = x.astype(FLOAT32), 1.0
    if norm is not None:
        scaled, divisor = scaled * norm.astype(FLOAT32), np.sqrt(np.square(x.astype(np.float64)).mean() + EPSILON)
    taken = numbers_of_x(quantized_rows(scaled, form), form) if form in W8A8 else scaled.astype(dtype).astype(np.float64)
    return taken @ numbers.T / divisor


@describes
def quantize_rows(m, k, form="int8", dtype=BFLOAT16, numbers=False):
    """Rows of x as codes and scales; in fp8 blocks a scale for each 128 inputs. numbers: as numbers of x's dtype."""
    by_groups = form == "fp8_block"
    launcher, options = (row_groups_of_x.quantize_row_groups, {}) if by_groups else (rows_of_x.quantize_rows, dict(code=form))

    def arrays(noise):
        x = noise.array((m, k), dtype)
        x[1:2, : 200 if by_groups else k] = 0  # a whole row or group
        return dict(x=x)

    def call(ops, x):
        found = launcher(x, ops.empty, ops.stream, **options, as_numbers=numbers)
        return dict(codes=found) if numbers and by_groups else found._asdict()

    def reference(x):
        if not by_groups:
            return multiplied(x, form, "widened" if numbers else "gemv")
        rows = row_groups_of_x.RowGroups(*quantize_row_groups(x))
        return numbers_of_x(rows, form).astype(FLOAT32).astype(dtype) if numbers else rows

    moved = rows_moved(m, k, dtype.itemsize, by_groups)
    return Launch(arrays, call, returns(("codes", "scales"), reference), moved, exact=True)


@describes
def dequantize(form, n, k, dtype=BFLOAT16):
    """A weight as numbers of a dtype; of W8A8, its codes alone."""

    def reference(weight):
        if form in W8A8:
            return numbers_of_codes(weight, form).astype(dtype)
        return FORMATS[form].dequantize(weight).astype(dtype)

    return Launch(
        arrays=lambda noise: dict(weight=weight_of(noise, form, n, k, exact=True), out=noise.unwritten((n, k), dtype)),
        call=calls(DEQUANTIZE[family(form)]),
        reference=returns(("out",), reference),
        moved=lambda weight, out: widened_moved(form, n, k, dtype.itemsize, weight),
    )


@describes
def quantized_product(
    variant, form, m, n, k, dtype=BFLOAT16, out_dtype=None, bias=False, gated=False, norm=False, residual=False, exact=False, tiling=None,
    magnitude=1.0, distinct=None,
):  # fmt: skip
    """x @ weight.T + bias + residual by a variant of the format; gated: silu(x @ gate.T) * (x @ up.T), n rows of weight each.

    bias: True, or its dtype if that is not the output's. norm: of the RMSNorm of x. residual: True, or "in place" if it is the output.
    magnitude: of x.
    """
    kernels, result, rows = FORMATS[form].kernels, out_dtype or dtype, 2 * n if gated else n
    by_codes = exact and form in W8A8 and variant in ("flat", "wgmma")

    def arrays(noise):
        x = noise.array((m, k), FLOAT32 if exact else dtype, magnitude)
        x = np.ones_like(x) if exact and gated else np.sign(x) if exact and norm else np.round(x) if exact else x
        if by_codes:
            codec, whole = FORMATS[form].codec, whole_codes(noise.array((rows, k), FLOAT32), form)
            x, weights = whole_codes(x, form), dict(weight=codec.weight(whole.codes.view(codec.codes.dtype), whole.scales))
        else:
            x = multiplied(x.astype(dtype, copy=False), form, variant)
            weights = weights_of(noise, form, rows, k, distinct, exact=exact, gated=gated)
        given = dict(x=x, **weights, out=noise.array((m, n), result) if residual == "in place" else noise.unwritten((m, n), result))
        given |= dict(bias=noise.array((n,), result if bias is True else bias)) if bias else {}
        if norm:
            given |= dict(norm=np.ones(k, dtype) if exact and gated else np.round(noise.array((k,), dtype)))
        return given | (dict(residual=noise.array((m, n), result)) if residual is True else {})

    def call(ops, x, weight, out, bias=None, small=None, **fused):
        options = fused | (dict(residual=out) if residual == "in place" else {})
        options |= (dict(epsilon=EPSILON * (not exact)) if norm else {}) | (dict(tiling=tiling) if tiling else {})
        if variant in kernels.workspaces:
            options["workspace"] = kernels.workspaces[variant](x, weight, ops.empty)
        if gated:
            kernels.gated(variant, x, weight, out.dtype)(x, weight, out, stream=ops.stream, **options)
        else:
            launcher = int4_naive if variant == "int4_naive" else kernels.variants[variant]
            launcher(x, weight, out, bias, stream=ops.stream, **options)

    def reference(x, weight, out, bias=None, norm=None, small=None, **apart):
        total = sums_of(x, weight, norm, form, variant, dtype, small)
        if gated:
            gate, up = np.split(total, 2, axis=1)
            with np.errstate(over="ignore"):
                total = gate / (1 + np.exp(-gate)) * up
        addends = bias, out if residual == "in place" else apart.get("residual")
        return sum((one.astype(np.float64) for one in addends if one is not None), total).astype(result)

    def moved(weight, **arrays):
        return product_moved(variant, family(form), m, rows, k, dtype.itemsize, tiling, gated, weight, arrays) if exact else {}

    slack, lost = SLACK.get(form, 2e-5), 0
    if form.startswith("fp8") and variant in ("flat", "wgmma"):
        lost = LOST_PER_STEP * (k if form == "fp8" else FP8_BLOCK) / STEP_OF_FP8
    rows_of = ("out", "x") if residual is not True else ("out", "x", "residual")
    return Launch(arrays, call, returns(("out",), reference), moved, rows=rows_of, slack=slack, lost=lost)


@describes
def quantized_qkv(
    form, heads, kv_heads, head_dim, k, dtype=BFLOAT16, bias=False, exact=False, tiling=None, slot=5, distinct=None, codes=None,
    smooth=False,
):  # fmt: skip
    """Queries, rotated, and keys and values in the cache, from the RMSNorm of one row of x; slot -1 is none.

    codes, smooth: of the cache, as in gemv_qkv_rope_append.
    """
    rows, launch = (heads + 2 * kv_heads) * head_dim, FORMATS[form].kernels.normed_qkv

    def arrays(noise):
        x, norm = noise.array((1, k), dtype), noise.array((k,), dtype)
        places = dict(positions=np.array([1], np.int32), slot_mapping=np.array([slot], np.int32), cos_sin=table(2, head_dim))
        caches = cache_arrays(noise, kv_heads, head_dim, k, dtype, codes, smooth)
        given = dict(x=np.sign(x) if exact else x, norm=norm, **weights_of(noise, form, rows, k, distinct))
        given |= dict(bias=noise.array((rows,), dtype) if bias else None)
        return given | places | dict(query=noise.unwritten((1, heads, head_dim), dtype)) | caches

    def call(ops, small=None, **arrays):
        key, value, given = caches_of(arrays, codes)
        launch(**given, key_cache=key, value_cache=value, epsilon=EPSILON, stream=ops.stream, tiling=tiling)

    def reference(x, norm, weight, bias, small=None, **places):
        sums = sums_of(x, weight, norm, form, "tensor_core_gemv", dtype, small) + (0 if bias is None else bias.astype(np.float64))
        return in_their_places(sums.astype(FLOAT32), codes=codes, **places)

    return Launch(
        arrays,
        call,
        reference=in_place(reference, *(CODED if codes else PLAIN)),
        moved=qkv_moved(heads, kv_heads, head_dim, k, dtype.itemsize, tiling, codes, smooth) if exact else {},
        slack=SLACK.get(form, 2e-5),
    )


def small():
    """Each kernel in each format with exact sums; quantized_odd.py has every tiling and odd shapes."""
    yield quantize_rows(3, 300)
    yield quantize_rows(3, 299, "fp8", FLOAT32)
    yield quantize_rows(3, 264, "fp8")
    yield quantize_rows(3, 300, "fp8_block")
    yield from each(quantize_rows, [(3, 300)], form=("int8", "fp8", "fp8_block"), dtype=DTYPES, numbers=[False, True])
    for form in ("fp8_block", "int8_groups", "int4/64_zeros", "nf4/nested"):
        yield dequantize(form, 5, 192)
    exact, one = (
        dict(exact=True),
        TensorCoreGemvTiling(warps=2, splits=2, cluster=1, unroll=1, tokens=1, blocks=1),
    )  # a tile of 16 rows a block
    for form in W8A8:
        yield quantized_product("widened", form, 3, 5, 24, FLOAT32, **exact)
    for form in (*W8A8, "fp8_block", "int8_groups"):
        yield quantized_product("gemv", form, 2, 5, 544, **exact)
    for form in ("int4/64_zeros", "nf4/nested"):
        yield quantized_product("gemv", form, 2, 5, 1088, **exact)
    yield quantized_product("int4_naive", "int4/64_zeros", 2, 5, 192, **exact)
    yield quantized_product("wgmma", "fp8", 128, 128, 256, **exact, tiling=WgmmaTiling(1, 64, 2, 2))
    yield quantized_product("flat", "int8", 8, 128, 256, **exact, tiling=FlatWgmmaTiling(warpgroups=1, stages=2, splits=2))
    for form in ("int4/128", "nf4/nested"):
        yield quantized_product("wgmma", form, 8, 128, 128, **exact, tiling=MixedInputTiling(warpgroups=1, tokens=8, stages=2))
    yield quantized_product("tensor_core_gemv", "int4/64_zeros", 1, 32, 256, bias=True, norm=True, residual=True, **exact, tiling=one)
    yield quantized_product("tensor_core_gemv", "nf4/nested", 1, 32, 256, **exact, tiling=TensorCoreGemvTiling(1, 1, 1, 2, 1, 1))
    yield quantized_product("tensor_core_gemv", "int8", 1, 16, 128, gated=True, norm=True, **exact, tiling=one)
    yield quantized_qkv("fp8", 2, 1, 8, 128, bias=True, **exact, tiling=one)
    yield quantized_qkv("int8", 2, 1, 8, 128, tiling=one)
    yield replace(quantized_qkv("fp8", 4, 2, 16, 128, bias=True, **exact, tiling=one, codes="fp8_e4m3", smooth=True), counted=True)
    several = TensorCoreGemvTiling(warps=2, splits=2, cluster=2, unroll=1, tokens=8)  # a step for each of a tile's four warps
    yield quantized_product("tensor_core_gemv", "int4/64_zeros", 3, 32, 512, bias=True, **exact, tiling=several)
    yield quantized_product("tensor_core_gemv", "nf4/nested", 2, 16, 256, **exact, tiling=TensorCoreGemvTiling(1, 1, 2, 1, 8))
