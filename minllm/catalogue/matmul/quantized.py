"""The launches of the kernels of quantised weights: x [M, K] of b bytes an element or as codes, weight [N, K] as codes, out [M, N].

`form` is a weight's format: "int8", "fp8", "fp8_block", "int8_groups", "int4/128_zeros" (a group's size, and what is stored beside the
scales), "nf4/nested" or "nf4/not_nested". `exact`: whole numbers, and scales and norms that are powers of two where sums would be rounded.
"""

import itertools
from types import SimpleNamespace

import numpy as np

from minllm.catalogue.launch import FP8_TARGETS, HOPPER, TARGETS, Launch, MachineCode, calls, describes, each, in_place, returns
from minllm.catalogue.matmul.quantized_moved import product_moved, qkv_moved, rows_moved, widened_moved
from minllm.catalogue.noise import WithoutContents
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32, longest_rows
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized import fp8, fp8_block, fp8_block_wgmma, int4, int8, int8_groups, nf4
from minllm.kernels.matmul.quantized import row_groups as row_groups_of_x
from minllm.kernels.matmul.quantized import rows as rows_of_x
from minllm.kernels.matmul.quantized.batched_gemv.gemv import choose_tiling as choose_batched_tiling
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import TensorCoreGemvTiling
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS, WgmmaTiling
from minllm.kernels.rope.rotate import rope_reference
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.fp8 import E4M3, quantize_fp8
from minllm.weights.fp8_block import BLOCK, quantize_row_groups
from minllm.weights.int4 import Int4Format
from minllm.weights.int8 import quantize_int8
from minllm.weights.int8_groups import Int8GroupFormat, Int8GroupWeight
from minllm.weights.nf4 import Nf4Format, quantize_blocks

EPSILON = 1e-5
LOADS = ("LDG*128*",)
GROUPS, STORED = (32, 64, 128), ("", "_zeros", "_minimums")
W8A8 = ("int8", "fp8")
FORMATS = {name: WEIGHT_FORMATS[name] for name in (*W8A8, "fp8_block")}
FORMATS |= {"int8_groups": Int8GroupFormat("int8_groups", 1, group_size=32)}
FORMATS |= {f"nf4/{'nested' if nested else 'not_nested'}": Nf4Format("nf4", 0.5, nested=nested) for nested in (True, False)}
FORMATS |= {
    f"int4/{size}{stored}": Int4Format("int4", 0.5, group_size=size, has_zeros=stored == "_zeros", has_minimums=stored == "_minimums")
    for size, stored in itertools.product(GROUPS, STORED)
}
DEQUANTIZE = {
    "int8": int8.widen_int8, "fp8": fp8.widen_fp8, "fp8_block": fp8_block.dequantize_fp8_block, "int4": int4.dequantize_int4,
    "int8_groups": int8_groups.dequantize_int8_groups, "nf4": nf4.dequantize_nf4,
}  # fmt: skip
OF_ONE_ROW = {"int4": tensor_core_gemv.INT4, "nf4": tensor_core_gemv.NF4, "int8": tensor_core_gemv.INT8, "fp8": tensor_core_gemv.FP8}
CODE_DTYPES = {"float8_e4m3fn": "fp8", "int8": "int8"}
INSTRUCTIONS = {"fp8": "QGMMA.64x*", "int8": "IGMMA.64x*"}
MIXED = ("int4", "nf4", "int8_groups")  # formats whose variant wgmma is the mixed-input GEMM
SLACK = {"int8": 1e-6, "fp8": 1e-5}  # error of float32 sums and scales, relative to the largest result
MANY = 1 << 20  # numbers of a weight
LOST_PER_STEP = 2.0**-15  # what Hopper loses of the largest result: it adds 32 products of e4m3 per step and keeps some 14 bits of the sum


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
        return found.without_contents(SimpleNamespace(empty=np.zeros), n, k)
    matrix = noise.array((n, k), FLOAT32, 1.0 if exact else 0.1)
    if gated and exact:
        matrix[: n // 2] = 1
    if form == "int8_groups":
        scales = np.full((k // 32, n), 1) if exact else np.abs(matrix[:, ::32]).T
        return Int8GroupWeight(noise.random.integers(-128, 128, (n, k), np.int8), np.ascontiguousarray(scales / 64, np.float16))
    weight = found.encode(matrix)
    if form.endswith("minimums"):
        weight = weight._replace(minimums=(-7.3 * weight.scales).astype(np.float16))
    if form == "nf4/not_nested":
        weight = weight._replace(absmax=quantize_blocks(matrix)[1].T.copy(), nested=None)
    if family(form) == "nf4" and (exact or n * k > MANY):  # so that no fused multiply-add makes an absmax; one of many would be rounded
        weight = weight._replace(offsets=np.zeros_like(weight.offsets))
    if exact and family(form) == "int4":
        weight = weight._replace(scales=np.ones_like(weight.scales))
    return weight


def whole_codes(matrix, code):
    """Rows of whole numbers as codes with scales of 1, so that sums are exact."""
    codes = np.round(matrix).astype(np.int8 if code == "int8" else E4M3)
    return rows_of_x.QuantizedRows(codes.view(np.uint8), np.ones(len(codes), FLOAT32))


def quantized_rows(x, code):
    """x as QuantizedRows of this code."""
    rows = dict(int8=quantize_int8, fp8=quantize_fp8)[code](x)
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
        return x.codes.view(E4M3).astype(np.float64) * np.repeat(x.scales, BLOCK, axis=1)[:, : x.codes.shape[1]]
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
    if family(form) == "nf4" and variant in ("tensor_core_gemv", "batched_gemv", "wgmma"):
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


def sums_of(x, weight, norm, form, variant, dtype):
    """norm(x) @ weight.T in float64; a GEMV on tensor cores multiplies x * norm, rounded or quantised, and divides the sums."""
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
    variant, form, m, n, k, dtype=BFLOAT16, out_dtype=None, bias=False, gated=False, norm=False, residual=False, exact=False, tiling=None
):
    """x @ weight.T + bias + residual by a variant of the format; gated: silu(x @ gate.T) * (x @ up.T), n rows of weight each.

    bias: True, or its dtype if that is not the output's. norm: of the RMSNorm of x.
    """
    kernels, result, rows = FORMATS[form].kernels, out_dtype or dtype, 2 * n if gated else n
    by_codes = exact and form in W8A8 and variant in ("flat", "wgmma")

    def arrays(noise):
        x = noise.array((m, k), FLOAT32)
        x = np.ones_like(x) if exact and gated else np.sign(x) if exact and norm else np.round(x) if exact else x
        if by_codes:
            whole = whole_codes(noise.array((rows, k), FLOAT32), form)
            x, weight = whole_codes(x, form), type(weight_of(noise, form, 1, k))(*whole)
            weight = weight._replace(codes=weight.codes.view(np.int8)) if form == "int8" else weight
        else:
            x, weight = multiplied(x.astype(dtype), form, variant), weight_of(noise, form, rows, k, exact, gated)
        given = dict(x=x, weight=weight, out=noise.unwritten((m, n), result))
        given |= dict(bias=noise.array((n,), result if bias is True else bias)) if bias else {}
        if norm:
            given |= dict(norm=np.ones(k, dtype) if exact and gated else np.round(noise.array((k,), dtype)))
        return given | (dict(residual=noise.array((m, n), result)) if residual else {})

    def call(ops, x, weight, out, bias=None, **fused):
        options = fused | (dict(epsilon=EPSILON * (not exact)) if norm else {}) | (dict(tiling=tiling) if tiling else {})
        if variant in kernels.workspaces:
            options["workspace"] = kernels.workspaces[variant](x, weight, ops.empty)
        if gated:
            kernels.gated(variant, x, weight, out.dtype)(x, weight, out, stream=ops.stream, **options)
        else:
            kernels.variants[variant](x, weight, out, bias, stream=ops.stream, **options)

    def reference(x, weight, bias=None, norm=None, residual=None):
        total = sums_of(x, weight, norm, form, variant, dtype)
        if gated:
            gate, up = np.split(total, 2, axis=1)
            with np.errstate(over="ignore"):
                total = gate / (1 + np.exp(-gate)) * up
        return sum((one.astype(np.float64) for one in (bias, residual) if one is not None), total).astype(result)

    def moved(weight, **arrays):
        return product_moved(variant, family(form), m, rows, k, dtype.itemsize, tiling, gated, weight, arrays) if exact else {}

    slack = SLACK.get(form, 2e-5) + (k / 32 * LOST_PER_STEP if form.startswith("fp8") and variant in ("flat", "wgmma") else 0)
    return Launch(arrays, call, returns(("out",), reference), moved, slack=slack)


@describes
def quantized_qkv(form, heads, kv_heads, head_dim, k, dtype=BFLOAT16, bias=False, exact=False, tiling=None):
    """Queries, turned, and keys and values in the cache, from the RMSNorm of one row of x."""
    rows = (heads + 2 * kv_heads) * head_dim

    def arrays(noise):
        x, norm = noise.array((1, k), dtype), noise.array((k,), dtype)
        places = dict(positions=np.array([1], np.int32), slot_mapping=np.array([5], np.int32), cos_sin=table(2, head_dim))
        caches = {name: noise.array((3, 4, kv_heads, head_dim), dtype) for name in ("key_cache", "value_cache")}
        given = dict(x=np.sign(x) if exact else x, norm=norm, weight=weight_of(noise, form, rows, k))
        given |= dict(bias=noise.array((rows,), dtype) if bias else None)
        return given | places | dict(query=noise.unwritten((1, heads, head_dim), dtype)) | caches

    def reference(x, norm, weight, bias, positions, slot_mapping, cos_sin, key_cache, value_cache):
        sums = sums_of(x, weight, norm, form, "tensor_core_gemv", dtype) + (0 if bias is None else bias.astype(np.float64))
        qkv = sums.astype(FLOAT32).reshape(1, -1, head_dim)
        turned = rope_reference(qkv[:, : heads + kv_heads], positions, cos_sin)
        by_slot(key_cache)[slot_mapping] = turned[:, heads:].astype(dtype)
        by_slot(value_cache)[slot_mapping] = qkv[:, heads + kv_heads :].astype(dtype)
        return dict(query=turned[:, :heads].astype(dtype))

    return Launch(
        arrays,
        call=calls(tensor_core_gemv.make_qkv_gemv(OF_ONE_ROW[family(form)]), epsilon=EPSILON, tiling=tiling),
        reference=in_place(reference, "key_cache", "value_cache"),
        moved=qkv_moved(heads, kv_heads, head_dim, k, dtype.itemsize, tiling) if exact else {},
        slack=SLACK.get(form, 2e-5),
    )


def compiled():
    """All kernels for activations of each dtype; 4 blocks of 128 threads per SM hide the latency of loads."""
    for dtype in DTYPES:
        yield from compiled_8_bits(dtype)
        yield from compiled_4_bits(dtype)
        if dtype == BFLOAT16:  # kernels with float16 outputs differ in one letter
            for name, code in CODE_DTYPES.items():
                yield from compiled_codes(name, code)
            yield from compiled_fp8_blocks()
        if dtype in HALF_DTYPES:
            yield from compiled_tensor_core_gemv(dtype)
            yield from compiled_batched_gemv(dtype)


def gemv(form, m, dtype, variant="gemv"):
    """A GEMV with a bias."""
    return quantized_product(variant, form, m, 8, 256, dtype, bias=True)


def compiled_8_bits(dtype):
    """Rows of x as codes, the GEMVs of one and eight rows, and the widened matrix."""
    for form in W8A8:
        only = dict(targets=targets_of(form))
        for numbers in (False, True):
            name = f"matmul/quantize_rows/{form}/{'numbers' if numbers else 'codes'}/{dtype}"
            yield MachineCode(name, quantize_rows(1, 7, form, dtype, numbers), blocks=4, **only)
        for pieces, length in longest_rows(dtype):
            name = f"matmul/quantize_vectors/{form}/{pieces}/{dtype}"
            yield MachineCode(name, quantize_rows(1, length, form, dtype), blocks=1, contains=LOADS, **only)
        for m in (1, 8):
            yield MachineCode(f"matmul/{form}_gemv/{m}/{dtype}", gemv(form, m, dtype), blocks=4, contains=LOADS, **only)
        yield MachineCode(f"matmul/widen_{form}/{dtype}", dequantize(form, 8, 256, dtype), blocks=8, **only)
    launch = gemv("int8", 1, dtype, "widened")
    yield MachineCode(f"matmul/scale_sums/{dtype}", launch, blocks=6, kernel_name="scale_sums_kernel")
    for form, room, blocks in (("int8_groups", "int8_group", 4), ("fp8_block", "fp8_block", 8)):
        only = dict(targets=targets_of(form))
        for m in (1, 8):
            yield MachineCode(f"matmul/{room}_gemv/{m}/{dtype}", gemv(form, m, dtype), blocks=4, contains=LOADS, **only)
        contains = LOADS if form == "int8_groups" else ()
        yield MachineCode(f"matmul/dequantize_{form}/{dtype}", dequantize(form, 8, 256, dtype), blocks, contains, **only)
    for numbers in (False, True):
        name = f"matmul/quantize_row_groups/{'numbers' if numbers else 'codes'}/{dtype}"
        yield MachineCode(name, quantize_rows(1, 256, "fp8_block", dtype, numbers), blocks=4, targets=FP8_TARGETS)


def compiled_4_bits(dtype):
    """The GEMVs of one and eight rows, and the widened matrix."""
    for size, stored in itertools.product(GROUPS, STORED):
        form, kind = f"int4/{size}{stored}", f"{size}{stored}/{dtype}"
        for m in (1, 8):
            yield MachineCode(f"matmul/int4_gemv/{m}/{kind}", gemv(form, m, dtype), blocks=4, contains=LOADS)
        if size == GROUPS[0]:  # the first rung's kernel serves groups of any size
            yield MachineCode(f"matmul/int4_naive/{kind}", gemv(form, 1, dtype, "int4_naive"), blocks=16)
        yield MachineCode(f"matmul/dequantize_int4/{kind}", dequantize(form, 8, 256, dtype), blocks=4, contains=LOADS)
    for m in (1, 8):
        for form, kind in (("nf4/nested", m), ("nf4/not_nested", f"{m}/not_nested")):
            yield MachineCode(f"matmul/nf4_gemv/{kind}/{dtype}", gemv(form, m, dtype), blocks=4, contains=LOADS)
    yield MachineCode(f"matmul/dequantize_nf4/{dtype}", dequantize("nf4/nested", 8, 256, dtype), blocks=4, contains=LOADS)


def compiled_codes(name, form):
    """W8A8 on Hopper: by wgmma all tilings, plain and gated, with a bias, and with outputs that TMA cannot store; flat for few rows."""
    contains = (INSTRUCTIONS[form], "UTMALDG.2D*", "SYNCS.PHASECHK*")

    def by_wgmma(kind, tiling=TILINGS[0], **options):
        launch = quantized_product("wgmma", form, 64, 512, 128, tiling=tiling, **options)
        return MachineCode(f"matmul/wgmma/{name}/{kind}/bfloat16", launch, 1, (*contains, "WARPGROUP.DEPBAR*"), targets=HOPPER)

    for tiling in TILINGS:
        kind = f"{tiling.tile_m}x{tiling.tile_n}{'/cluster' if tiling.cluster > 1 else ''}{'/early' if tiling.early else ''}"
        yield by_wgmma(kind, tiling)
        if tiling.tile_n in GATED_TILES:
            yield by_wgmma(f"{kind}/silu", tiling._replace(chunks=1), gated=True)
    yield by_wgmma("bias", bias=True)
    yield by_wgmma("out float32", out_dtype=FLOAT32)
    shapes = ((8, 4096, 14336), (16, 28672, 4096), (64, 6144, 4096), (256, 6144, 4096))
    for gated, (m, n, k) in itertools.product((False, True), shapes):
        launch = quantized_product("flat", form, m, n, k, gated=gated)
        yield MachineCode(f"matmul/flat/wgmma/{name}/{'gated/' if gated else ''}{m}x{n}x{k}/bfloat16", launch, 1, contains, targets=HOPPER)


def compiled_fp8_blocks():
    """Fp8 in blocks by wgmma: all tilings, plain with a bias, gated, and with float32 outputs, which are stored from registers."""

    def by_wgmma(kind, tiling, **options):
        launch = quantized_product("wgmma", "fp8_block", 64, 768, 256, tiling=tiling, **options)
        contains = ("QGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")
        return MachineCode(f"matmul/fp8_block_wgmma/{kind}/bfloat16", launch, 1, contains, targets=HOPPER)

    for gated, tilings in ((False, fp8_block_wgmma.TILINGS), (True, fp8_block_wgmma.GATED_TILINGS)):
        for tiling in tilings:
            kind = f"{'silu/' if gated else ''}{tiling.tile_m}x{tiling.tile_n}{'/cluster' if tiling.cluster > 1 else ''}"
            yield by_wgmma(kind, tiling, gated=gated, bias=not gated)
    yield by_wgmma("out float32", fp8_block_wgmma.TILINGS[0], out_dtype=FLOAT32, bias=BFLOAT16)


OF_TENSOR_CORE_GEMV = (
    *("int4/128", "int4/128_zeros", "int4/64", "int4/32", "int4/32_zeros", "int4/32_minimums"),
    *("nf4/nested", "nf4/not_nested", "int8", "fp8"),
)
SPILLED = {  # most bytes that a kernel may spill, by form and compute capability
    "fp8/plain/4096": {(9, 0): 44, (10, 0): 16},
    "int4/128/gated/4096": {(8, 0): 6, (8, 9): 6},
    "int4/128/plain/14336": {(8, 0): 16, (8, 9): 16},
    "int4/32_minimums/qkv/4096": {(10, 0): 4},
    "int4/32_zeros/qkv/4096": {(10, 0): 4},
    "int8/plain/14336": {(9, 0): 8},
}


def compiled_tensor_core_gemv(dtype):
    """GEMVs on tensor cores with the tilings chosen for the weights of 8B and 1B models.

    Plain with residual, gate and up with norm, and queries, keys and values with norm and bias.
    """
    kinds = [(form, outputs, 4096) for form in OF_TENSOR_CORE_GEMV for outputs in ("plain", "gated", "qkv")]
    kinds += [(form, "plain", k) for form in ("int4/128", "int4/32_zeros", "nf4/nested", *W8A8) for k in (2048, 14336)]
    for form, outputs, k in kinds:
        n = dict(plain=min(k, 4096), gated=28672, qkv=6144)[outputs]
        if outputs == "qkv":
            launch = quantized_qkv(form, 32, 8, 128, k, dtype, bias=True)
        else:
            options = dict(gated=True, norm=True) if outputs == "gated" else dict(residual=True)
            launch = quantized_product("tensor_core_gemv", form, 1, n // 2 if outputs == "gated" else n, k, dtype, **options)
        contains = ({"int8": "IMMA*", "fp8": "[HQ]MMA*"}.get(form, "HMMA*"), *LOADS)
        blocks = tensor_core_gemv.choose_tiling(OF_ONE_ROW[family(form)], n, k).blocks
        name, spills = f"matmul/tensor_core_gemv/{form}/{outputs}/{n}x{k}/{dtype}", SPILLED.get(f"{form}/{outputs}/{k}", {})
        yield MachineCode(name, launch, blocks, contains, spills=spills, targets=targets_of(form))


SPILLED_BY_BATCHED_GEMV = {"16x4096x14336/float16": 8}  # most bytes that a kernel of any format may spill


def compiled_batched_gemv(dtype):
    """Batched GEMVs, Hopper only: 8 and 16 rows, the tilings chosen for the weights of an 8B model; a weight [28672, K] is gate and up."""
    forms = ("int4/128", "int4/128_zeros", "int4/64", "int4/32_minimums", "nf4/nested", "nf4/not_nested")
    for form, m, (n, k) in itertools.product(forms, (8, 16), ((28672, 4096), (6144, 4096), (4096, 14336))):
        gated, shape = n == 28672, f"{m}x{n}x{k}/{dtype}"
        launch = quantized_product("batched_gemv", form, m, n // 2 if gated else n, k, dtype, gated=gated, bias=not gated)
        name, spills = f"matmul/batched_gemv/{form}/{'gated/' if gated else ''}{shape}", {(9, 0): SPILLED_BY_BATCHED_GEMV.get(shape, 0)}
        blocks = choose_batched_tiling(m, n, k).blocks
        yield MachineCode(name, launch, blocks, ("HMMA*", *LOADS, "STAS*"), spills=spills, targets=HOPPER)


def small():
    """Each kernel in each format with exact sums; tests/kernels/matmul has every tiling, odd shapes and extremes."""
    yield quantize_rows(3, 300)
    yield quantize_rows(3, 299, "fp8", FLOAT32)
    yield quantize_rows(3, 264, "fp8")
    yield quantize_rows(3, 300, "fp8_block")
    yield from each(quantize_rows, [(3, 300)], form=("int8", "fp8", "fp8_block"), dtype=DTYPES, numbers=[False, True])
    for form in ("fp8_block", "int8_groups", "int4/64_zeros", "nf4/nested"):
        yield dequantize(form, 5, 192)
    exact, one = dict(exact=True), TensorCoreGemvTiling(warps=2, splits=2, unroll=1, blocks=2, per_sm=1)  # a tile of 16 rows a block
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
    yield quantized_product("tensor_core_gemv", "nf4/nested", 1, 32, 256, **exact, tiling=TensorCoreGemvTiling(1, 1, 2, 2, 1))
    yield quantized_product("tensor_core_gemv", "int8", 1, 16, 128, gated=True, norm=True, **exact, tiling=one)
    yield quantized_qkv("fp8", 2, 1, 8, 128, bias=True, **exact, tiling=one)
    yield quantized_qkv("int8", 2, 1, 8, 128, tiling=one)
    batched = BatchedGemvTiling(warps=2, splits=2, cluster=2, unroll=1, tokens=8)  # a step for each of a tile's four warps
    yield quantized_product("batched_gemv", "int4/64_zeros", 3, 32, 512, bias=True, **exact, tiling=batched)
    yield quantized_product("batched_gemv", "nf4/nested", 2, 16, 256, **exact, tiling=BatchedGemvTiling(1, 1, 2, 1, 8))
