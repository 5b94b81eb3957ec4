"""GEMMs of plain weights at sizes around those of tiles, vectors and warps, with tilings so small that they have edges and blocks."""

import functools
import itertools

from minllm.catalogue.matmul.fused import flat_qkv_rope_append, gated_of_deferred_norm, linear_add
from minllm.catalogue.matmul.products import gated_product, product
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.matmul import tensor_core
from minllm.kernels.matmul.flat.mma_tiling import FlatTiling
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.gemv import GemvTiling
from minllm.kernels.matmul.ladder import tiled
from minllm.kernels.matmul.tensor_core import TensorCoreTiling
from minllm.kernels.matmul.wgmma.tiling import TILINGS as WGMMA_TILINGS
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

HALVES = BFLOAT16, FLOAT16
# Around tiles of 8, 16 and 32, vectors of 4 and 8, and a warp's 128 or 256 elements of K: one less, exact, one more, primes, and 1.
FEW_ROWS = [(1, 1, 1), (1, 17, 8), (2, 16, 7), (3, 5, 264), (4, 9, 255), (7, 15, 16), (8, 13, 40), (8, 3, 520)]
SHAPES = [*FEW_ROWS, (15, 16, 33), (16, 16, 16), (16, 17, 64), (17, 15, 47), (19, 37, 71), (31, 32, 24), (33, 18, 32)]
# Around tiles of 64 and 128 and steps of 64; K that is no multiple of 8 goes to tensor_core.
WGMMA_SHAPES = [(1, 1, 8), (17, 15, 47), (64, 64, 64), (65, 72, 72), (63, 136, 136), (129, 65, 40), (200, 201, 192)]
# Around tiles of 64 x 256 and steps of 64, with fewer and more steps than the ring has stages.
WARPGROUP_SHAPES = [(1, 1, 8), (17, 15, 47), (64, 256, 64), (65, 255, 328), (63, 258, 136), (130, 264, 520)]
FLAT_SHAPES = [(1, 17, 8), (8, 3, 328), (9, 65, 72)]

TENSOR_CORE_TILINGS = (
    TensorCoreTiling(16, 16, 16, 1, 1, 2),
    TensorCoreTiling(32, 32, 32, 1, 2, 3),
    TensorCoreTiling(16, 32, 64, 1, 2, 4),
)
SMALL_WGMMA_TILINGS = (
    *(WgmmaTiling(1, 64, 2), WgmmaTiling(1, 128, 3, 2, 2, 1), WgmmaTiling(2, 64, 2, 2)),
    WgmmaTiling(1, 96, 2, 2, 1, early=True),
)
GEMV_TILINGS = GemvTiling(1, 1, 1), GemvTiling(2, 2, 2), GemvTiling(3, 1, 1), GemvTiling(1, 4, 1, 2), GemvTiling(2, 4, 2, 4)
# One warp and several, K divided among warps or blocks, and rings that turn over.
FLAT_TILINGS = FlatTiling(16, 1, 1, 2), FlatTiling(32, 4, 4, 3), FlatWgmmaTiling(1, 2, 1), FlatWgmmaTiling(2, 3, 2)
FLAT = (
    # More parts of K than tiles, and blocks that share tiles of x, the last cluster with more blocks than rows of weight.
    *(((5, 9, 255), None), ((33, 65, 136), FlatTiling(64, 4, 2, 9)), ((3, 33, 200), FlatWgmmaTiling(1, 3, 8))),
    # Outputs that are stored eight at a time.
    *(((9, 72, 72), FlatTiling(32, 4, 4, 3)), ((17, 136, 200), FlatWgmmaTiling(2, 2, 2)), ((5, 72, 64), FlatWgmmaTiling(1, 2))),
    *(((17, 130, 200), FlatWgmmaTiling(1, 2, 2, 2)), ((60, 65, 264), FlatWgmmaTiling(1, 3, 1, 4))),
)
GATED_GEMVS = ((1, 7, 520), (1, 5, 19), (3, 9, 264), (8, 4, 64)), (None, GemvTiling(2, 2, 1, 2), GemvTiling(4, 1, 2))
GATED_FLAT = ((1, 7, 520), (9, 40, 72)), (None, FlatTiling(32, 2, 2, 3), FlatWgmmaTiling(1, 2, 2), FlatWgmmaTiling(2, 2, 1))
GATED_WGMMA = (
    *((1, 1, 8, BFLOAT16, WgmmaTiling(1, 128, 2)), (65, 72, 72, FLOAT16, WgmmaTiling(1, 128, 2))),
    *((m, n, k, BFLOAT16, WgmmaTiling(1, 128, 3, 2, 1, 1)) for m, n, k in ((63, 136, 64), (129, 65, 40))),
    (64, 200, 136, BFLOAT16, WgmmaTiling(1, 256, 2, 1, 2)),
    (130, 240, 136, BFLOAT16, WGMMA_TILINGS[2]),  # a gated tile of two times 112 columns
)
WGMMA_RESIDUALS = (
    (65, 72, 72, BFLOAT16, None, WgmmaTiling(1, 64, 2)),
    (33, 65, 40, FLOAT16, None, WgmmaTiling(1, 128, 2)),
    (130, 136, 64, BFLOAT16, FLOAT32, WgmmaTiling(2, 64, 2, 2)),
    # Few rows: consumers get equal parts of them, 33 and 20 here.
    (130, 136, 200, BFLOAT16, None, WgmmaTiling(2, 64, 2, 2, early=True)),
    (77, 65, 40, FLOAT16, FLOAT32, WgmmaTiling(2, 96, 3, 2, early=True)),
    *((130, 264, 136, BFLOAT16, None, WGMMA_TILINGS[number]) for number in (0, 2, 3, -1)),
)
# m, n, k and the tiling: one eight of outputs per thread and two, K in one part and several, blocks that share x, one block and many.
STREAMS = (
    (3, 128, 128, FlatWgmmaTiling(1, 2)),
    (16, 64, 192, FlatWgmmaTiling(1, 3, 3)),
    (9, 128, 136, FlatWgmmaTiling(2, 2)),
    (13, 128, 256, FlatWgmmaTiling(1, 2, 2, 2)),
)
QKV_STREAMS = (  # m, heads, kv_heads, head_dim, k, parts of the squares, dtype, bias, tiling
    (3, 2, 1, 64, 128, 0, BFLOAT16, False, FlatWgmmaTiling(1, 2)),
    (12, 1, 1, 128, 136, 3, BFLOAT16, True, FlatWgmmaTiling(1, 2, 2)),
    (17, 2, 1, 128, 64, 3, FLOAT16, False, FlatWgmmaTiling(2, 2)),
)
CHOSEN = dict(  # the tilings of models
    tiled=((65, 63, 33, FLOAT32, dict(tile=tiled.TILES[1])),),
    tensor_core=(
        (17, 65, 136, BFLOAT16, dict(tiling=tensor_core.TILINGS[-1])),
        (65, 63, 35, FLOAT16, dict(tiling=tensor_core.TILING_BY_ELEMENTS)),
    ),
    gemv=((2, 9, 1032, BFLOAT16, dict(out_dtype=FLOAT32)), (1, 9, 8200, BFLOAT16, {})),
    flat=((3, 65, 136, BFLOAT16, {}), (130, 9, 8, FLOAT16, dict(bias=False))),
)


def spread(variant, shapes, dtypes, *options, exact_every=3):
    """One product a shape and option, taking dtypes, output dtypes and biases in turn, every third one also of whole numbers."""
    for number, (shape, option) in enumerate(itertools.product(shapes, options or ({},))):
        dtype, is_wide = dtypes[number % len(dtypes)], number // len(dtypes) % 2
        out_dtype = dict(out_dtype=FLOAT32) if is_wide and dtype != FLOAT32 else {}
        for exact in ({}, dict(exact=True))[: 1 + (number % exact_every == 0)]:
            yield product(variant, *shape, dtype, **out_dtype, bias=number % 5 < 3, **exact, **option)


def tilings(*values):
    """Options of a launcher: each of these tilings."""
    return [dict(tiling=one) for one in values]


def odd():
    """Everything meets everything without a full product."""
    yield from spread("naive", SHAPES, DTYPES)
    yield from spread("warp_per_row", FEW_ROWS, DTYPES)
    yield from spread("tiled", SHAPES, DTYPES, dict(tile=(8, 8, 2)), dict(tile=(16, 4, 4)))
    yield from spread("vectorized", SHAPES, DTYPES, dict(tile=16))
    yield from spread("vectorized", [(33, 47, 24)], DTYPES, dict(tile=32))
    yield from spread("wgmma", WGMMA_SHAPES, HALVES, *tilings(*SMALL_WGMMA_TILINGS))
    for rung in ("warpgroup", "warp_specialized"):
        yield from spread(rung, WARPGROUP_SHAPES, HALVES)
    yield from spread("tensor_core", SHAPES, HALVES, *tilings(*TENSOR_CORE_TILINGS))
    yield from spread("flat", FLAT_SHAPES, HALVES, *tilings(*FLAT_TILINGS))
    yield from (product("flat", *shape, bias=True, tiling=tiling) for shape, tiling in FLAT)
    yield from spread("fixed_order", [*FLAT_SHAPES, (5, 9, 255)], HALVES)
    yield product("fixed_order", 3, 9, 20, FLOAT32, bias=True)
    yield from spread("gemv", FEW_ROWS, DTYPES, *tilings(*GEMV_TILINGS))
    for variant, products in CHOSEN.items():
        yield from (product(variant, m, n, k, dtype, **(dict(bias=True) | options)) for m, n, k, dtype, options in products)
    for variant, dtypes, (shapes, of_tilings) in (("gemv", DTYPES, GATED_GEMVS), ("flat", HALVES, GATED_FLAT)):
        for shape, dtype, tiling in itertools.product(shapes, dtypes, of_tilings):
            yield gated_product(variant, *shape, dtype, tiling=tiling)
    yield from of_streams(STREAMS, QKV_STREAMS)
    yield from of_wgmma(GATED_WGMMA, WGMMA_RESIDUALS)


def of_wgmma(gated, residuals):
    """What wgmma has beyond the ladder: the gate, and a residual beside the bias."""
    for m, n, k, dtype, tiling in gated:
        yield gated_product("wgmma", m, n, k, dtype, tiling=tiling)
    for m, n, k, dtype, out_dtype, tiling in residuals:
        yield product("wgmma", m, n, k, dtype, out_dtype, bias=True, residual=True, tiling=tiling)


def of_streams(streams, qkv_streams):
    """Flat GEMMs from residual stream to residual stream, and from norm to cache."""
    for m, n, k, tiling in streams:
        yield linear_add(m, n, k, FLOAT16 if m == 9 else BFLOAT16, bias=m == 3, tiling=tiling)
        yield gated_of_deferred_norm(m, n, k, 3, FLOAT16 if m == 16 else BFLOAT16, tiling=tiling)
    for m, heads, kv_heads, head_dim, k, parts, dtype, bias, tiling in qkv_streams:
        yield flat_qkv_rope_append(m, heads, kv_heads, head_dim, k, parts, dtype, bias=bias, skip=True, tiling=tiling)


LARGE_SHAPES = [(127, 129, 1031), (128, 256, 2048), (129, 257, 2040), (257, 1003, 520), (613, 509, 4104), (1, 4099, 4096), (8, 2053, 8191)]
WGMMA_LARGE_SHAPES = [(128, 256, 2048), (257, 1003, 520), (1111, 2056, 4104)]
FLAT_LARGE_SHAPES = [(m, 1003, 2056) for m in (1, 9, 17, 33, 65, 129, 256)]
FLAT_LARGE_SHAPES += [(8, 28672, 520), (31, 4099, 4104), (127, 20000, 264)]
MODEL_SHAPES = [(1, 3072, 2048), (1, 2048, 2048), (1, 16384, 2048), (1, 2048, 8192), (5, 1003, 344), (8, 6144, 4096), (2, 50257, 768)]
LARGE_GEMV_TILINGS = ((1, 8, 2), (1, 4, 4), (1, 8, 4), (2, 8, 2), (2, 4, 4), (4, 4, 2), (1, 8, 8), (1, 8, 4, 2), (1, 8, 2, 4))


def large():
    """Odd shapes at the tilings that models use, each also of whole numbers."""
    spread_exact = functools.partial(spread, exact_every=1)
    yield from spread_exact("naive", LARGE_SHAPES, DTYPES)
    yield from spread_exact("tiled", LARGE_SHAPES, DTYPES, *(dict(tile=tile) for tile in tiled.TILES))
    yield from spread_exact("tensor_core", LARGE_SHAPES, HALVES, {}, *tilings(*tensor_core.TILINGS))
    yield from spread_exact("vectorized", LARGE_SHAPES, DTYPES)
    yield from spread_exact("wgmma", WGMMA_LARGE_SHAPES, HALVES, {}, *tilings(*WGMMA_TILINGS))
    for rung in ("warpgroup", "warp_specialized"):
        yield from spread_exact(rung, WGMMA_LARGE_SHAPES, HALVES)
    yield from spread_exact("flat", FLAT_LARGE_SHAPES, HALVES)
    yield from spread_exact("gemv", FEW_ROWS + MODEL_SHAPES, DTYPES)
    for k, tiling, dtype in itertools.product((2048, 8192, 5000), LARGE_GEMV_TILINGS, HALVES):
        yield product("gemv", 1, 1003, k, dtype, bias=True, tiling=GemvTiling(*tiling))
    streams = ((16, 2048, 8192, None), (64, 4096, 14336, None), (33, 4096, 4096, None))
    qkv_streams = (
        (16, 32, 8, 64, 2048, 3, BFLOAT16, False, None),
        (20, 32, 8, 128, 4096, 3, BFLOAT16, False, None),
    )
    yield from of_streams(streams, qkv_streams)
    gated = ((1111, 1032, 520, BFLOAT16, None), (300, 264, 4104, FLOAT16, None))
    yield from of_wgmma(gated, ((1111, 2056, 520, BFLOAT16, None, None),))
