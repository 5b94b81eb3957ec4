"""The kernels of quantised weights as they are compiled."""

import itertools

from minllm.catalogue.launch import FP8_TARGETS, HOPPER, MachineCode
from minllm.catalogue.matmul.quantized import (
    FORMATS,
    GROUPS,
    STORED,
    W8A8,
    dequantize,
    quantize_rows,
    quantized_product,
    quantized_qkv,
    targets_of,
)
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT32, longest_short_rows
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.quantized import fp8_block_wgmma
from minllm.kernels.matmul.quantized.rows import WORDS
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import choose_tiling
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS

CODE_DTYPES = {"float8_e4m3fn": "fp8", "int8": "int8"}
INSTRUCTIONS = {"fp8": "QGMMA.64x*", "int8": "IGMMA.64x*"}
LOADS = ("LDG*128*",)


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
            yield from compiled_tensor_core_gemv_of_rows(dtype)


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
        for pieces, length in longest_short_rows(dtype, WORDS):
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
SPILLED = {"fp8/plain/4096": {(9, 0): 44, (10, 0): 44}}  # most bytes that a kernel may spill, by form and compute capability


def compiled_tensor_core_gemv(dtype):
    """GEMVs on tensor cores with the tilings chosen for the weights of 8B, 1B and 70B models.

    Plain with residual, gate and up with norm, and queries, keys and values with norm and bias.
    """
    kinds = [(form, outputs, n, 4096) for form in OF_TENSOR_CORE_GEMV for outputs, n in (("plain", 4096), ("gated", 28672), ("qkv", 6144))]
    kinds += [(form, "qkv/fp8_e4m3", 6144, 4096) for form in ("int4/128", *W8A8)]
    kinds += [(form, "plain", min(k, 4096), k) for form in ("int4/128", "int4/32_zeros", "nf4/nested", *W8A8) for k in (2048, 14336)]
    kinds += [(form, "plain", 8192, 14336) for form in ("int4/32", "int4/128_zeros", "nf4/nested")]
    kinds += [
        (form, outputs, n, 8192) for form in ("int4/32", "int4/128", "nf4/nested") for outputs, n in (("gated", 28672), ("qkv", 6144))
    ]
    for form, outputs, n, k in kinds:
        kind, _, codes = outputs.partition("/")  # the format of the cache
        if kind == "qkv":
            launch = quantized_qkv(form, 32, 8, 128, k, dtype, bias=True, codes=codes or None, smooth=bool(codes))
        else:
            options = dict(gated=True, norm=True) if kind == "gated" else dict(residual=True)
            launch = quantized_product("tensor_core_gemv", form, 1, n // 2 if kind == "gated" else n, k, dtype, **options)
        contains = ({"int8": "IMMA*", "fp8": "[HQ]MMA*"}.get(form, "HMMA*"), *LOADS)
        blocks = choose_tiling(FORMATS[form].codec, 1, n, k).blocks
        name, spills = f"matmul/tensor_core_gemv/{form}/{outputs}/{n}x{k}/{dtype}", SPILLED.get(f"{form}/{outputs}/{k}", {})
        yield MachineCode(name, launch, blocks, contains, spills=spills, targets=FP8_TARGETS if codes else targets_of(form))


SPILLED_BY_ROWS = {"16x4096x14336/float16": 72, "16x6144x4096/float16": 16}  # most bytes that a kernel of any format may spill


def compiled_tensor_core_gemv_of_rows(dtype):
    """The same for 8 and 16 rows, Hopper only; a weight [28672, K] is gate and up."""
    forms = ("int4/128", "int4/128_zeros", "int4/64", "int4/32_minimums", "nf4/nested", "nf4/not_nested")
    for form, m, (n, k) in itertools.product(forms, (8, 16), ((28672, 4096), (6144, 4096), (4096, 14336))):
        gated, shape = n == 28672, f"{m}x{n}x{k}/{dtype}"
        launch = quantized_product("tensor_core_gemv", form, m, n // 2 if gated else n, k, dtype, gated=gated, bias=not gated)
        name, spills = f"matmul/tensor_core_gemv/{form}/{'gated/' if gated else ''}{shape}", {(9, 0): SPILLED_BY_ROWS.get(shape, 0)}
        blocks = choose_tiling(FORMATS[form].codec, m, n, k).blocks
        yield MachineCode(name, launch, blocks, ("HMMA*", *LOADS, "STAS*"), spills=spills, targets=HOPPER)
