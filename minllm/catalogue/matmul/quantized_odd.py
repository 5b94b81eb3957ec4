"""GEMVs and GEMMs of quantised weights at odd sizes, with every tiling and what is fused with them."""

import itertools

from minllm.catalogue.matmul.quantized import quantize_rows, quantized_product, quantized_qkv
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import TensorCoreGemvTiling
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

# The largest and the smallest x that int4 multiplies without loss in bfloat16.
EXTREMES = [(form, magnitude) for form in ("int4/128", "int4/32_zeros", "int4/32_minimums") for magnitude in (1e18, 1e-20)]
# form, N, K, dtype, tiling: warps, splits, unroll, blocks and blocks per SM (of two), options
OF_ONE_ROW = (
    ("int4/128", 40, 640, BFLOAT16, (4, 4, 1, 2, 1), dict(norm=True)),  # one warp has two steps, three have one
    ("int4/128", 33, 640, FLOAT16, (2, 2, 2, 2, 1), dict(norm=True, bias=True, residual="in place")),  # five steps padded to eight
    ("int4/128", 7, 256, BFLOAT16, (2, 1, 3, 2, 1), dict(bias=True, out_dtype=FLOAT32)),  # less than a tile; one warp has none
    ("int4/128", 71, 256, FLOAT16, (1, 1, 2, 2, 1), dict(residual=True)),  # three and two tiles per block
    ("int4/64", 20, 896, BFLOAT16, (8, 8, 1, 2, 1), dict(residual="in place")),  # seven steps for eight warps
    ("int4/64", 17, 512, FLOAT16, (4, 2, 2, 2, 1), dict(norm=True, residual=True, out_dtype=FLOAT32)),
    ("int4/32", 35, 384, BFLOAT16, (2, 2, 2, 2, 1), dict(norm=True, bias=True)),
    ("int4/32", 16, 128, FLOAT16, (1, 1, 1, 2, 1), {}),  # a single step
    ("int4/32_zeros", 35, 384, BFLOAT16, (2, 2, 2, 2, 1), dict(norm=True, residual="in place")),
    ("int4/128_zeros", 19, 768, FLOAT16, (4, 2, 1, 2, 1), dict(bias=True)),
    ("int4/32_minimums", 23, 512, BFLOAT16, (4, 4, 1, 2, 1), dict(norm=True, residual=True)),
    ("int4/256", 23, 768, BFLOAT16, (2, 2, 2, 2, 1), dict(residual="in place")),
    ("int4/640", 19, 640, FLOAT16, (2, 2, 1, 2, 1), dict(bias=True)),  # one group per row
    ("nf4/nested", 35, 384, BFLOAT16, (2, 2, 1, 2, 1), dict(norm=True, residual="in place")),
    ("nf4/nested", 13, 384, FLOAT16, (1, 1, 4, 2, 1), dict(bias=True, out_dtype=FLOAT32)),
    ("nf4/not_nested", 30, 512, BFLOAT16, (8, 8, 1, 2, 1), dict(norm=True)),
    ("nf4/not_nested", 55, 128, FLOAT16, (1, 1, 1, 2, 1), dict(residual=True)),
    ("int8", 40, 576, BFLOAT16, (4, 4, 2, 2, 1), dict(norm=True, residual="in place")),  # nine steps of 64
    ("int8", 77, 320, FLOAT16, (2, 1, 2, 2, 1), dict(bias=True, residual=True, out_dtype=FLOAT32)),
    ("int8", 5, 64, BFLOAT16, (8, 8, 1, 2, 1), {}),  # one step for eight warps
    ("fp8", 40, 448, BFLOAT16, (8, 8, 1, 2, 1), dict(norm=True, bias=True)),
    ("fp8", 67, 640, FLOAT16, (4, 2, 2, 2, 1), dict(residual="in place")),
    ("fp8", 9, 192, BFLOAT16, (1, 1, 4, 2, 1), dict(norm=True, out_dtype=FLOAT32)),
    ("int4/128", 27, 640, BFLOAT16, (4, 2, 2, 2, 1), dict(norm=True, gated=True)),
    ("int4/32_zeros", 20, 256, FLOAT16, (4, 4, 1, 2, 1), dict(gated=True)),
    ("int4/32_minimums", 9, 256, FLOAT16, (2, 1, 1, 2, 1), dict(norm=True, gated=True)),
    ("nf4/nested", 25, 384, BFLOAT16, (1, 1, 2, 2, 1), dict(norm=True, gated=True)),
    ("nf4/not_nested", 7, 256, FLOAT16, (4, 4, 1, 2, 1), dict(gated=True)),
    ("int8", 33, 320, BFLOAT16, (2, 2, 2, 2, 1), dict(norm=True, gated=True)),
    ("fp8", 17, 256, FLOAT16, (4, 2, 1, 2, 1), dict(norm=True, gated=True)),
    ("int4/128", 19, 896, BFLOAT16, (7, 7, 1, 2, 1), dict(norm=True)),  # one step per warp
    ("int4/128", 18, 1152, BFLOAT16, (3, 3, 3, 2, 1), {}),  # no two steps share a load of scales
    ("int4/64", 9, 1152, FLOAT16, (1, 1, 4, 2, 1), dict(residual=True)),  # nine steps padded to twelve
    ("int4/32", 17, 640, BFLOAT16, (1, 1, 4, 2, 1), dict(norm=True)),  # five steps padded to eight
    ("int4/32_zeros", 21, 384, FLOAT16, (1, 1, 3, 2, 1), {}),
    ("nf4/nested", 18, 1792, BFLOAT16, (14, 14, 1, 1, 1), dict(norm=True)),  # one step per warp
    ("nf4/nested", 37, 896, BFLOAT16, (7, 7, 1, 2, 1), dict(residual="in place")),
    ("nf4/nested", 11, 1152, FLOAT16, (1, 1, 3, 2, 1), dict(norm=True)),
    ("nf4/odd_first_block", 21, 1024, BFLOAT16, (2, 2, 4, 2, 1), {}),
    ("nf4/odd_first_block", 37, 1152, FLOAT16, (2, 1, 2, 2, 1), dict(norm=True)),
    ("nf4/not_nested", 20, 1152, BFLOAT16, (1, 1, 4, 2, 1), dict(gated=True)),
    ("int8", 18, 448, BFLOAT16, (7, 7, 1, 2, 1), dict(norm=True)),
    ("int4/128", 140, 512, BFLOAT16, (4, 4, 1, 2, 1), dict(norm=True)),  # five and four tiles per block
    ("nf4/nested", 115, 384, BFLOAT16, (3, 3, 1, 2, 1), dict(residual="in place")),
    ("int8", 235, 256, BFLOAT16, (4, 2, 2, 2, 1), dict(bias=True)),  # two tiles at a time, four times
    *((form, 17, 384, BFLOAT16, (2, 2, 2, 2, 1), dict(out_dtype=FLOAT32, magnitude=magnitude)) for form, magnitude in EXTREMES),
)
QKV_OF_ONE_ROW = (  # form, heads, heads of keys, size of heads, K, dtype, tiling, options
    ("int4/128", 3, 2, 8, 256, BFLOAT16, (2, 2, 1, 2, 1), dict(bias=True)),
    ("int4/64", 3, 1, 8, 256, FLOAT16, (2, 2, 2, 2, 1), {}),
    ("int4/32_zeros", 2, 1, 10, 384, BFLOAT16, (4, 4, 1, 2, 1), dict(slot=-1)),
    ("nf4/nested", 2, 2, 8, 256, BFLOAT16, (1, 1, 2, 2, 1), {}),
    ("nf4/not_nested", 1, 1, 6, 384, FLOAT16, (4, 4, 1, 2, 1), dict(bias=True)),
    ("int8", 4, 1, 8, 320, FLOAT16, (8, 4, 1, 2, 1), dict(bias=True, slot=-1)),
    ("fp8", 2, 1, 24, 192, BFLOAT16, (2, 1, 1, 2, 1), dict(bias=True)),
)
# form, M, N, K, dtype, tiling: warps, splits, blocks per cluster, unroll, tokens and blocks per SM (of two), options
BATCHED = (
    ("int4/128", 2, 40, 1024, BFLOAT16, (2, 2, 2, 2, 8), {}),  # two clusters, one of them with two tiles
    ("int4/128", 11, 33, 640, FLOAT16, (2, 1, 4, 1, 16), dict(bias=True)),  # two chunks, five steps padded to eight
    ("int4/128", 1, 7, 256, BFLOAT16, (1, 1, 1, 3, 8), dict(bias=True, out_dtype=FLOAT32)),  # less than a tile
    ("int4/128", 16, 71, 256, FLOAT16, (1, 1, 1, 2, 16), {}),
    ("int4/128", 8, 100, 512, BFLOAT16, (4, 4, 1, 1, 8), dict(bias=True)),
    ("int4/128", 9, 24, 1152, FLOAT16, (1, 1, 8, 2, 16), {}),  # some blocks have no step
    ("int4/128", 5, 27, 640, BFLOAT16, (4, 2, 2, 2, 8), dict(gated=True)),
    ("int4/128", 3, 17, 2304, BFLOAT16, (4, 4, 8, 1, 8), {}),  # 18 steps for 32 warps
    ("int4/64", 3, 20, 896, BFLOAT16, (2, 2, 4, 1, 8), dict(out_dtype=FLOAT32)),
    ("int4/64", 16, 17, 512, FLOAT16, (2, 1, 2, 2, 16), dict(bias=True, out_dtype=FLOAT32)),
    ("int4/64", 8, 40, 384, BFLOAT16, (1, 1, 2, 4, 8), dict(gated=True)),
    ("int4/32", 2, 35, 384, BFLOAT16, (2, 2, 2, 3, 8), dict(bias=True)),
    ("int4/32", 13, 16, 128, FLOAT16, (1, 1, 1, 1, 16), {}),  # a single step
    ("int4/32", 8, 50, 640, BFLOAT16, (1, 1, 1, 4, 8), {}),  # two chunks, five steps padded to eight
    ("int4/32_zeros", 5, 35, 384, BFLOAT16, (2, 2, 1, 2, 8), {}),
    ("int4/32_zeros", 2, 20, 256, FLOAT16, (4, 4, 1, 1, 8), dict(gated=True)),  # two warps have no step
    ("int4/128_zeros", 11, 19, 768, FLOAT16, (4, 2, 2, 1, 16), dict(bias=True)),
    ("int4/32_minimums", 9, 23, 512, BFLOAT16, (4, 4, 1, 1, 16), {}),
    ("int4/32_minimums", 3, 40, 512, FLOAT16, (1, 1, 4, 1, 8), dict(gated=True)),
    ("int4/32_minimums", 16, 35, 768, BFLOAT16, (2, 1, 8, 1, 16), dict(bias=True)),
    ("int4/256", 5, 23, 768, BFLOAT16, (2, 2, 2, 2, 8), {}),
    ("int4/640", 9, 19, 640, FLOAT16, (2, 1, 4, 1, 16), dict(bias=True)),  # one group per row
    ("nf4/nested", 2, 35, 384, BFLOAT16, (2, 2, 1, 2, 8), dict(bias=True)),
    ("nf4/nested", 11, 13, 384, FLOAT16, (1, 1, 4, 1, 16), dict(out_dtype=FLOAT32)),
    ("nf4/nested", 16, 40, 1152, BFLOAT16, (2, 1, 2, 3, 16), {}),  # two chunks, nine steps padded to twelve
    ("nf4/nested", 8, 25, 384, BFLOAT16, (1, 1, 2, 2, 8), dict(gated=True)),
    ("nf4/not_nested", 3, 30, 512, BFLOAT16, (4, 2, 2, 1, 8), {}),
    ("nf4/not_nested", 16, 55, 128, FLOAT16, (1, 1, 1, 1, 16), dict(bias=True)),
    ("nf4/not_nested", 9, 20, 1152, BFLOAT16, (2, 2, 4, 2, 16), dict(gated=True)),
    ("nf4/odd_first_block", 5, 21, 1024, BFLOAT16, (2, 2, 1, 4, 8), {}),
    ("nf4/odd_first_block", 16, 19, 1152, FLOAT16, (2, 1, 8, 1, 16), {}),
    ("int4/128", 2, 140, 512, BFLOAT16, (2, 2, 2, 1, 8), {}),  # five and four tiles per cluster: buffers alternate
    ("int4/128", 3, 235, 256, FLOAT16, (4, 1, 2, 1, 8, 1), dict(bias=True)),  # four tiles at a time, four times
    ("nf4/nested", 13, 150, 384, BFLOAT16, (1, 1, 4, 1, 16), {}),  # the only cluster has ten tiles, all for the same warp
    *(
        (form, 2, 17, 384, BFLOAT16, (2, 2, 2, 1, 8), dict(out_dtype=FLOAT32, magnitude=max(magnitude, 1e-17)))
        for form, magnitude in EXTREMES
    ),
)
BY_WGMMA = (  # form, M, N, K, output dtype, tiling
    ("fp8", 67, 72, 208, BFLOAT16, WgmmaTiling(1, 64, 2)),
    ("int8", 130, 65, 144, FLOAT16, WgmmaTiling(1, 64, 2, 2)),  # rows of out that TMA cannot store
    ("int8", 65, 136, 400, FLOAT32, WgmmaTiling(2, 96, 3, 2, early=True)),
    ("fp8", 1, 96, 16, FLOAT32, WgmmaTiling(1, 128, 2)),
    ("fp8_block", 70, 256, 400, BFLOAT16, WgmmaTiling(1, 128, 2)),  # the last group is incomplete
    ("fp8_block", 130, 384, 256, FLOAT32, WgmmaTiling(2, 192, 2, 2, 3)),
    ("fp8_block", 9, 128, 144, FLOAT16, None),
)
GATED_BY_WGMMA = (
    ("int8", 63, 72, 272, BFLOAT16, WgmmaTiling(1, 128, 2)),
    ("fp8", 129, 65, 144, FLOAT16, WgmmaTiling(2, 128, 2, early=True)),
    ("fp8_block", 67, 256, 272, BFLOAT16, WgmmaTiling(1, 128, 2)),
)
FLAT = (
    ("fp8", 9, 136, 528, BFLOAT16, FlatWgmmaTiling(1, 3, 2)),
    ("int8", 40, 65, 400, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2)),  # padded to 48 rows: int8 has no wgmma of 40
    ("int8", 3, 72, 144, FLOAT32, FlatWgmmaTiling(1, 2, 4)),  # one block has no step of K
)
GATED_FLAT = (
    ("fp8", 17, 65, 272, FLOAT16, FlatWgmmaTiling(1, 2, 2)),
    ("int8", 64, 64, 128, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2)),
)


def odd():
    """Each kernel in each format."""
    for form, n, k, dtype, tiling, options in OF_ONE_ROW:
        yield quantized_product("tensor_core_gemv", form, 1, n, k, dtype, **options, tiling=TensorCoreGemvTiling(*tiling))
    for form, heads, kv_heads, head_dim, k, dtype, tiling, options in QKV_OF_ONE_ROW:
        yield quantized_qkv(form, heads, kv_heads, head_dim, k, dtype, **options, tiling=TensorCoreGemvTiling(*tiling))
    for form, m, n, k, dtype, tiling, options in BATCHED:
        yield quantized_product("batched_gemv", form, m, n, k, dtype, **options, tiling=BatchedGemvTiling(*tiling))
    yield quantized_product("batched_gemv", "int4/32", 2, 40, 128)
    yield quantized_product("batched_gemv", "nf4/nested", 9, 24, 256, FLOAT16)
    for variant, plain, gated in (("wgmma", BY_WGMMA, GATED_BY_WGMMA), ("flat", FLAT, GATED_FLAT)):
        for form, m, n, k, dtype, tiling in plain:
            yield quantized_product(variant, form, m, n, k, out_dtype=dtype, bias=BFLOAT16, tiling=tiling)
        for form, m, n, k, dtype, tiling in gated:
            yield quantized_product(variant, form, m, n, k, out_dtype=dtype, gated=True, tiling=tiling)


OF_4_BITS = ("int4/128", "int4/32_zeros", "int4/32_minimums", "int4/64", "nf4/nested", "nf4/not_nested")
LARGE_OF_ONE_ROW = (  # N, K, dtype, options
    (6144, 4096, BFLOAT16, dict(norm=True)),
    (14336, 4096, BFLOAT16, dict(norm=True, gated=True)),
    (4096, 14336, BFLOAT16, dict(residual="in place")),
    (4096, 4096, FLOAT16, dict(residual=True, out_dtype=FLOAT32)),
    (3072, 2048, BFLOAT16, dict(norm=True, bias=True)),
    (8192, 2048, FLOAT16, dict(norm=True, gated=True)),
    (2048, 8192, BFLOAT16, dict(residual="in place")),
    (1003, 2176, BFLOAT16, dict(norm=True, bias=True, residual="in place")),
    (32001, 2048, BFLOAT16, dict(norm=True, out_dtype=FLOAT32)),
)
LARGE_BATCHED = (
    (6144, 4096, BFLOAT16, dict(bias=True)),
    (4096, 4096, FLOAT16, dict(out_dtype=FLOAT32)),
    (14336, 4096, BFLOAT16, dict(gated=True)),
    (4096, 14336, BFLOAT16, {}),
    (3072, 2048, FLOAT16, dict(bias=True)),
    (2048, 8192, BFLOAT16, dict(out_dtype=FLOAT32)),
    (1003, 2176, BFLOAT16, dict(bias=True)),
)
LARGE_CODES = (  # variant, M, N, K, gated
    *(("flat", 1, 4099, 4112, False), ("flat", 17, 28672, 528, False), ("flat", 255, 1003, 4112, False), ("flat", 33, 3000, 2064, True)),
    *(("wgmma", 77, 1003, 4112, False), ("wgmma", 257, 2056, 4112, False), ("wgmma", 1111, 3001, 528, False)),
    ("wgmma", 300, 1000, 2064, True),
)
LARGE_BLOCKS = ((9, 4096, 4096, False), (300, 6144, 2064, False), (1111, 3072, 4096, False), (200, 1024, 2048, True))


def large():
    """Weights of models, and numbers of outputs that fill no block, by the tilings that launchers choose."""
    repeats = dict(distinct=256)
    for form, (n, k, dtype, options) in itertools.product((*OF_4_BITS, "int8", "fp8"), LARGE_OF_ONE_ROW):
        yield quantized_product("tensor_core_gemv", form, 1, n, k, dtype, **options, **repeats)
    for form in (*OF_4_BITS, "int8", "fp8"):
        yield quantized_qkv(form, 32, 8, 128, 4096, **repeats)
        yield quantized_qkv(form, 32, 8, 64, 2048, FLOAT16, bias=True, slot=-1, **repeats)
    for form, (n, k, dtype, options), m in itertools.product(OF_4_BITS, LARGE_BATCHED, (2, 8, 13, 16)):
        yield quantized_product("batched_gemv", form, m, n, k, dtype, **options, **repeats)
    products = [(form, *one) for form in ("fp8", "int8") for one in LARGE_CODES] + [("fp8_block", "wgmma", *one) for one in LARGE_BLOCKS]
    for form, variant, m, n, k, gated in products:
        yield quantized_product(variant, form, m, n, k, bias=not gated, gated=gated)
    for form, (m, k) in itertools.product(("int8", "fp8"), ((300, 14336), (128, 14336), (131, 32768), (3, 32776))):
        yield quantize_rows(m, k, form)
