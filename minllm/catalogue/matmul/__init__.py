"""The launches of the GEMMs: x [M, K] and weight [N, K] of b bytes an element, out [M, N]."""

from dataclasses import replace

from minllm.catalogue.launch import TB_S, TFLOP_S, Measured, for_tuning
from minllm.catalogue.matmul import machine_code, mixed_input, plain, quantized, quantized_machine_code, quantized_measured, quantized_odd
from minllm.catalogue.matmul.fused import flat_qkv_rope_append, gemv_qkv_rope_append, linear_add
from minllm.catalogue.matmul.products import gated_product, matmul_bytes, matmul_flops, product
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.matmul.arguments import MOST_ROWS_OF_FLAT
from minllm.kernels.matmul.flat.mma_tiling import FlatTiling
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.sums import GemvTiling
from minllm.kernels.matmul.tensor_core import TensorCoreTiling
from minllm.kernels.matmul.variants import VARIANTS
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

OF_8B = ((6144, 4096), (28672, 4096), (4096, 14336))  # queries, keys and values; gate and up; down: outputs x inputs
HOPPER_RUNGS = ("warpgroup", "warp_specialized", "wgmma")
GEMV_TILINGS = (None, GemvTiling(2, 2, 1, 2), GemvTiling(4, 1, 1), GemvTiling(2, 4, 1, 4))
# One row of x or several, whole vectors or not, one step per warp or many.
FUSED_GEMVS = ((1, 7, 520), (1, 5, 19), (3, 9, 264), (2, 6, 1032))
FUSED_QKV_GEMVS = ((2, 1, 1, 32, 520), (1, 4, 2, 16, 264), (3, 3, 1, 6, 19))


def compiled():
    """The kernels of plain weights, then those of quantised ones."""
    yield from machine_code.compiled()
    yield from quantized_machine_code.compiled()
    yield from mixed_input.compiled()


def small():
    """Whole numbers, whose products are exact; odd() has odd shapes and every option, tests/kernels/matmul extremes."""
    exact = dict(exact=True)
    yield product("naive", 17, 18, 24, **exact)
    yield product("warp_per_row", 2, 5, 75, **exact)
    yield product("tiled", 32, 48, 12, FLOAT32, **exact, tile=(16, 4, 4))
    yield product("vectorized", 32, 48, 16, FLOAT32, **exact, tile=16)
    yield product("gemv", 3, 8, 520, **exact, tiling=GemvTiling(2, 2, 2))
    yield gemv_qkv_rope_append(2, 2, 1, 8, 520, skip=False, tiling=GemvTiling(2, 2, 2))
    yield replace(
        gemv_qkv_rope_append(2, 2, 1, 16, 264, skip=False, tiling=GemvTiling(4, 2, 1), codes="fp8_e4m3", smooth=True), counted=True
    )
    yield product("flat", 8, 96, 128, **exact, tiling=FlatTiling(rows=32, warps=4, splits=2, stages=3))
    yield product("flat", 8, 128, 128, **exact, tiling=FlatWgmmaTiling(warpgroups=1, stages=2, splits=2))
    split = FlatWgmmaTiling(warpgroups=1, stages=2, splits=2)
    yield linear_add(8, 128, 128, tiling=split)
    yield flat_qkv_rope_append(8, 2, 1, 64, 128, tiling=split)
    yield product("tensor_core", 64, 96, 64, **exact, tiling=TensorCoreTiling(32, 32, 32, 1, 2, 3))
    yield product("warpgroup", 128, 256, 320, **exact)
    yield product("warp_specialized", 128, 256, 320, **exact)
    yield product("wgmma", 256, 128, 128, **exact, tiling=WgmmaTiling(1, 64, 2, 2))
    early = product("wgmma", 128, 192, 192, **exact, tiling=WgmmaTiling(1, 96, 2, 2, early=True))
    gated = gated_product("wgmma", 64, 128, 64, **exact, tiling=WgmmaTiling(1, 128, 2))
    yield from (replace(one, counted=True) for one in (early, gated))
    yield product("naive", 9, 7, 33, FLOAT32, **exact)
    yield product("tiled", 9, 17, 40, **exact, tile=(8, 8, 2))
    yield product("vectorized", 9, 17, 16, **exact, tile=16)
    for variant, rows in (("tensor_core", 9), ("gemv", 1), ("flat", 9), ("fixed_order", 9)):
        yield product(variant, rows, 18, 64, **exact)
    for number, tiling in enumerate(GEMV_TILINGS):
        yield from fused_gemvs(FUSED_GEMVS, FUSED_QKV_GEMVS, DTYPES[number % 3], tiling)
    yield from of_engines()
    yield from quantized.small()
    yield from mixed_input.small()


def of_engines():
    """What engines launch besides: heads, whose outputs are float32, and GPT-2's biases."""
    by_threads, by_maps = FlatTiling(rows=32, warps=4, splits=2, stages=3), FlatWgmmaTiling(warpgroups=1, stages=2, splits=2)
    for dtype, tiling in ((BFLOAT16, by_threads), (FLOAT16, by_threads), (BFLOAT16, by_maps)):
        yield product("flat", 8, 128, 128, dtype, FLOAT32, tiling=tiling)
    yield product("tensor_core", 9, 18, 64, FLOAT16)
    yield product("gemv", 1, 7, 520, FLOAT16, FLOAT32, norm=True)
    yield product("gemv", 1, 7, 520, FLOAT32, bias=True)
    yield product("gemv", 1, 7, 520, FLOAT32, bias=True, residual=True)


def fused_gemvs(shapes, qkv_shapes, dtype, tiling):
    """GEMVs with a norm, a residual, everything, a gate, and with what follows a product for queries, keys and values."""
    chosen = {} if tiling is None else dict(tiling=tiling)
    for around in (dict(norm=True), dict(residual=True), dict(norm=True, bias=True, residual=True)):
        yield from (product("gemv", *shape, dtype, **around, **chosen) for shape in shapes)
    yield from (gated_product("gemv", *shape, dtype, norm=True, **chosen) for shape in shapes)
    yield from (gemv_qkv_rope_append(*shape, dtype, tiling is None, **chosen) for shape in qkv_shapes)
    for number, (m, heads, kv_heads, head_dim, k) in enumerate(qkv_shapes):
        if head_dim % 16 == 0:
            coded = dict(codes=("fp8_e4m3", "fp8_e5m2")[number % 2], smooth=tiling is not None)
            yield gemv_qkv_rope_append(m, heads, kv_heads, head_dim, k, dtype, tiling is None, **chosen, **coded)


def odd():
    """Sizes around those of tiles and vectors, with every tiling and option."""
    yield from plain.odd()
    yield from quantized_odd.odd()


def large():
    """Rows of models, and numbers of outputs that fill no block."""
    for tiling in GEMV_TILINGS:
        shapes, qkv_shapes = ((1, 1003, 4096), (1, 515, 14336)), ((1, 32, 8, 128, 4096), (1, 32, 8, 64, 2048))
        yield from fused_gemvs((*FUSED_GEMVS, *shapes), (*FUSED_QKV_GEMVS, *qkv_shapes), BFLOAT16, tiling)
    yield from plain.large()
    yield from quantized_odd.large()
    yield from mixed_input.large()


def measured():
    """The ladder of the lessons and the kernels of an 8B model, then other shapes of all variants, for tuning."""
    yield from of_shapes(recorded_shapes())
    yield from for_tuning(of_shapes(shapes_for_tuning()))
    yield from quantized_measured.measured()


def recorded_shapes():
    """(variant, M, N, K) of the record's rows."""
    for variant in ("naive", "tiled", "vectorized", "tensor_core", *HOPPER_RUNGS):
        yield variant, 2048, 2048, 2048
    for variant in HOPPER_RUNGS:
        yield variant, 8192, 8192, 8192
    yield from ((variant, 4096, 4096, 4096) for variant in HOPPER_RUNGS if variant != "wgmma")
    yield from (("wgmma", 2048, n, k) for n, k in OF_8B)
    yield from (("gemv", 1, n, k) for n, k in (*OF_8B, (128256, 2048)))
    yield from (("flat", m, 6144, 4096) for m in (1, 8, 64, 256))
    yield from (("flat", m, 4096, 14336) for m in (1, 64, 256))
    yield from (("gemv", 8, 6144, 4096), ("wgmma", 256, 6144, 4096), ("flat", 64, 28672, 4096), ("warp_per_row", 8, 2048, 2048))


def shapes_for_tuning():
    """The shapes that the record does without; a variant that has none gets a small one."""
    shapes = [("gemv", 1, 16384, 2048), *((variant, 4096, 4096, 4096) for variant in ("tiled", "vectorized", "tensor_core", "wgmma"))]
    shapes += [(variant, 2048, 2048, 2048, FLOAT32) for variant in ("naive", "tiled", "vectorized")]
    for n, k in OF_8B:
        shapes.append(("tensor_core", 2048, n, k))
        shapes += [("flat", m, n, k) for m in (1, 8, 16, 32, 64, 128, 256)]
        shapes += [("fixed_order", m, n, k) for m in (1, 64, 256, 2048)]
        shapes += [("wgmma", m, n, k) for m in (128, 256)]
    recorded = [*recorded_shapes()]
    others = [name for name in VARIANTS if name not in {shape[0] for shape in (*shapes, *recorded)}]
    shapes += [(name, min(2048, VARIANTS.entry(name).most_rows or 2048), 2048, 2048) for name in others]
    return [shape for shape in shapes if shape not in recorded]


def of_shapes(shapes):
    """The rows of these shapes, named M x N x K: FLOPs per second for many rows, bytes per second for few."""
    for variant, m, n, k, *dtype in shapes:
        launch = product(variant, m, n, k, *dtype)
        moved, few_rows = matmul_bytes(m, n, k, launch.dtype.itemsize), m <= MOST_ROWS_OF_FLAT
        unit, work = (TB_S, moved) if few_rows else (TFLOP_S, matmul_flops(m, n, k))
        case, size = f"{m}x{n}x{k}, {launch.dtype}", dict(work=work, set_bytes=moved, sample=16)
        yield Measured(launch, variant, case, unit=unit, peers=("cuBLAS",), **size)
