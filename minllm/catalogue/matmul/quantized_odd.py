"""GEMVs and GEMMs of quantised weights at odd sizes, with every tiling and what is fused with them."""

import itertools

from minllm.catalogue.matmul.quantized import quantize_rows, quantized_product, quantized_qkv
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling

OPTIONS = dict(  # by the words of the tables
    **{word: {word: True} for word in ("norm", "bias", "gated", "residual")},
    in_place=dict(residual="in place"), wide=dict(out_dtype=FLOAT32), no_slot=dict(slot=-1), half_bias=dict(bias=BFLOAT16),
    codes=dict(codes="fp8_e4m3"), codes_e5m2=dict(codes="fp8_e5m2"), smooth=dict(smooth=True),
)  # fmt: skip
# The largest and the smallest x that int4 multiplies without loss in bfloat16.
EXTREMES = [(form, magnitude) for form in ("int4/128", "int4/32_zeros", "int4/32_minimums") for magnitude in (1e18, 1e-20)]
# form, N, K, dtype, tiling: warps, splits and unroll, options
OF_ONE_ROW = (
    ("int4/128", 40, 640, BFLOAT16, (4, 4, 1), "norm"),  # one warp has two steps, three have one
    ("int4/128", 33, 640, FLOAT16, (2, 2, 2), "norm bias in_place"),  # five steps padded to eight
    ("int4/128", 7, 256, BFLOAT16, (2, 1, 3), "bias wide"),  # less than a tile; one warp has none
    ("int4/128", 71, 256, FLOAT16, (1, 1, 2), "residual"),  # three and two tiles per block
    ("int4/64", 20, 896, BFLOAT16, (8, 8, 1), "in_place"),  # seven steps for eight warps
    ("int4/64", 17, 512, FLOAT16, (4, 2, 2), "norm residual wide"),
    ("int4/32", 35, 384, BFLOAT16, (2, 2, 2), "norm bias"),
    ("int4/32", 16, 128, FLOAT16, (1, 1, 1), ""),  # a single step
    ("int4/32_zeros", 35, 384, BFLOAT16, (2, 2, 2), "norm in_place"),
    ("int4/128_zeros", 19, 768, FLOAT16, (4, 2, 1), "bias"),
    ("int4/32_minimums", 23, 512, BFLOAT16, (4, 4, 1), "norm residual"),
    ("int4/256", 23, 768, BFLOAT16, (2, 2, 2), "in_place"),
    ("int4/640", 19, 640, FLOAT16, (2, 2, 1), "bias"),  # one group per row
    ("nf4/nested", 35, 384, BFLOAT16, (2, 2, 1), "norm in_place"),
    ("nf4/nested", 13, 384, FLOAT16, (1, 1, 4), "bias wide"),
    ("nf4/not_nested", 30, 512, BFLOAT16, (8, 8, 1), "norm"),
    ("nf4/not_nested", 55, 128, FLOAT16, (1, 1, 1), "residual"),
    ("int8", 40, 576, BFLOAT16, (4, 4, 2), "norm in_place"),  # nine steps of 64
    ("int8", 77, 320, FLOAT16, (2, 1, 2), "bias residual wide"),
    ("int8", 5, 64, BFLOAT16, (8, 8, 1), ""),  # one step for eight warps
    ("fp8", 40, 448, BFLOAT16, (8, 8, 1), "norm bias"),
    ("fp8", 67, 640, FLOAT16, (4, 2, 2), "in_place"),
    ("fp8", 9, 192, BFLOAT16, (1, 1, 4), "norm wide"),
    ("int4/128", 27, 640, BFLOAT16, (4, 2, 2), "norm gated"),
    ("int4/32_zeros", 20, 256, FLOAT16, (4, 4, 1), "gated"),
    ("int4/32_minimums", 9, 256, FLOAT16, (2, 1, 1), "norm gated"),
    ("nf4/nested", 25, 384, BFLOAT16, (1, 1, 2), "norm gated"),
    ("nf4/not_nested", 7, 256, FLOAT16, (4, 4, 1), "gated"),
    ("int8", 33, 320, BFLOAT16, (2, 2, 2), "norm gated"),
    ("fp8", 17, 256, FLOAT16, (4, 2, 1), "norm gated"),
    ("int4/128", 19, 896, BFLOAT16, (7, 7, 1), "norm"),  # one step per warp
    ("int4/128", 18, 1152, BFLOAT16, (3, 3, 3), ""),  # no two steps share a load of scales
    ("int4/64", 9, 1152, FLOAT16, (1, 1, 4), "residual"),  # nine steps padded to twelve
    ("int4/32", 17, 640, BFLOAT16, (1, 1, 4), "norm"),  # five steps padded to eight
    ("int4/32_zeros", 21, 384, FLOAT16, (1, 1, 3), ""),
    ("nf4/nested", 18, 1792, BFLOAT16, (14, 14, 1), "norm"),  # one step per warp
    ("nf4/nested", 37, 896, BFLOAT16, (7, 7, 1), "in_place"),
    ("nf4/nested", 11, 1152, FLOAT16, (1, 1, 3), "norm"),
    ("nf4/odd_first_block", 21, 1024, BFLOAT16, (2, 2, 4), ""),
    ("nf4/odd_first_block", 37, 1152, FLOAT16, (2, 1, 2), "norm"),
    ("nf4/not_nested", 20, 1152, BFLOAT16, (1, 1, 4), "gated"),
    ("int8", 18, 448, BFLOAT16, (7, 7, 1), "norm"),
    ("int4/128", 140, 512, BFLOAT16, (4, 4, 1), "norm"),  # five and four tiles per block
    ("nf4/nested", 115, 384, BFLOAT16, (3, 3, 1), "in_place"),
    ("int8", 235, 256, BFLOAT16, (4, 2, 2), "bias"),  # two tiles at a time, four times
)
QKV_OF_ONE_ROW = (  # form, heads, heads of keys, size of heads, K, dtype, tiling, options
    ("int4/128", 3, 2, 8, 256, BFLOAT16, (2, 2, 1), "bias"),
    ("int4/64", 3, 1, 8, 256, FLOAT16, (2, 2, 2), ""),
    ("int4/32_zeros", 2, 1, 10, 384, BFLOAT16, (4, 4, 1), "no_slot"),
    ("nf4/nested", 2, 2, 8, 256, BFLOAT16, (1, 1, 2), ""),
    ("nf4/not_nested", 1, 1, 6, 384, FLOAT16, (4, 4, 1), "bias"),
    ("int8", 4, 1, 8, 320, FLOAT16, (8, 4, 1), "bias no_slot"),
    ("fp8", 2, 1, 24, 192, BFLOAT16, (2, 1, 1), "bias"),
    ("fp8", 3, 1, 48, 192, BFLOAT16, (2, 1, 1), "codes smooth"),
    ("fp8", 2, 2, 16, 320, FLOAT16, (4, 4, 1), "bias codes_e5m2"),
    ("int4/32_zeros", 4, 2, 16, 384, BFLOAT16, (4, 2, 1), "bias codes smooth"),
    ("int8", 1, 1, 32, 320, FLOAT16, (2, 2, 1), "no_slot codes"),
    ("nf4/nested", 2, 1, 16, 256, BFLOAT16, (1, 1, 2), "codes_e5m2 smooth"),
)
# form, M, N, K, dtype, tiling: warps, splits, blocks per cluster, unroll, tokens and blocks per SM (of two), options
OF_SEVERAL_ROWS = (
    ("int4/128", 2, 40, 1024, BFLOAT16, (2, 2, 2, 2, 8), ""),  # two clusters, one of them with two tiles
    ("int4/128", 11, 33, 640, FLOAT16, (2, 1, 4, 1, 16), "bias"),  # two chunks, five steps padded to eight
    ("int4/128", 1, 7, 256, BFLOAT16, (1, 1, 1, 3, 8), "bias wide"),  # less than a tile
    ("int4/128", 16, 71, 256, FLOAT16, (1, 1, 1, 2, 16), ""),
    ("int4/128", 8, 100, 512, BFLOAT16, (4, 4, 1, 1, 8), "bias in_place"),
    ("int4/128", 9, 24, 1152, FLOAT16, (1, 1, 8, 2, 16), ""),  # some blocks have no step
    ("int4/128", 5, 27, 640, BFLOAT16, (4, 2, 2, 2, 8), "gated"),
    ("int4/128", 3, 17, 2304, BFLOAT16, (4, 4, 8, 1, 8), ""),  # 18 steps for 32 warps
    ("int4/64", 3, 20, 896, BFLOAT16, (2, 2, 4, 1, 8), "wide"),
    ("int4/64", 16, 17, 512, FLOAT16, (2, 1, 2, 2, 16), "bias wide"),
    ("int4/64", 8, 40, 384, BFLOAT16, (1, 1, 2, 4, 8), "gated"),
    ("int4/32", 2, 35, 384, BFLOAT16, (2, 2, 2, 3, 8), "bias"),
    ("int4/32", 13, 16, 128, FLOAT16, (1, 1, 1, 1, 16), ""),  # a single step
    ("int4/32", 8, 50, 640, BFLOAT16, (1, 1, 1, 4, 8), ""),  # two chunks, five steps padded to eight
    ("int4/32_zeros", 5, 35, 384, BFLOAT16, (2, 2, 1, 2, 8), ""),
    ("int4/32_zeros", 2, 20, 256, FLOAT16, (4, 4, 1, 1, 8), "gated"),  # two warps have no step
    ("int4/128_zeros", 11, 19, 768, FLOAT16, (4, 2, 2, 1, 16), "bias"),
    ("int4/32_minimums", 9, 23, 512, BFLOAT16, (4, 4, 1, 1, 16), ""),
    ("int4/32_minimums", 3, 40, 512, FLOAT16, (1, 1, 4, 1, 8), "gated"),
    ("int4/32_minimums", 16, 35, 768, BFLOAT16, (2, 1, 8, 1, 16), "bias"),
    ("int4/256", 5, 23, 768, BFLOAT16, (2, 2, 2, 2, 8), ""),
    ("int4/640", 9, 19, 640, FLOAT16, (2, 1, 4, 1, 16), "bias"),  # one group per row
    ("nf4/nested", 2, 35, 384, BFLOAT16, (2, 2, 1, 2, 8), "bias"),
    ("nf4/nested", 11, 13, 384, FLOAT16, (1, 1, 4, 1, 16), "wide"),
    ("nf4/nested", 16, 40, 1152, BFLOAT16, (2, 1, 2, 3, 16), ""),  # two chunks, nine steps padded to twelve
    ("nf4/nested", 8, 25, 384, BFLOAT16, (1, 1, 2, 2, 8), "gated"),
    ("nf4/not_nested", 3, 30, 512, BFLOAT16, (4, 2, 2, 1, 8), "residual"),
    ("nf4/not_nested", 16, 55, 128, FLOAT16, (1, 1, 1, 1, 16), "bias"),
    ("nf4/not_nested", 9, 20, 1152, BFLOAT16, (2, 2, 4, 2, 16), "gated"),
    ("nf4/odd_first_block", 5, 21, 1024, BFLOAT16, (2, 2, 1, 4, 8), ""),
    ("nf4/odd_first_block", 16, 19, 1152, FLOAT16, (2, 1, 8, 1, 16), ""),
    ("int4/128", 2, 140, 512, BFLOAT16, (2, 2, 2, 1, 8), ""),  # five and four tiles per cluster: buffers alternate
    ("int4/128", 3, 235, 256, FLOAT16, (4, 1, 2, 1, 8, 1), "bias"),  # four tiles at a time, four times
    ("nf4/nested", 13, 150, 384, BFLOAT16, (1, 1, 4, 1, 16), ""),  # the only cluster has ten tiles, all for the same warp
)
OF_CODES = (  # form, M, N, K, output dtype, tiling of flat or wgmma, options
    ("fp8", 67, 72, 208, BFLOAT16, WgmmaTiling(1, 64, 2), "half_bias"),
    ("int8", 130, 65, 144, FLOAT16, WgmmaTiling(1, 64, 2, 2), "half_bias"),  # rows of out that TMA cannot store
    ("int8", 65, 136, 400, FLOAT32, WgmmaTiling(2, 96, 3, 2, early=True), "half_bias"),
    ("fp8", 1, 96, 16, FLOAT32, WgmmaTiling(1, 128, 2), "half_bias"),
    ("fp8_block", 70, 256, 400, BFLOAT16, WgmmaTiling(1, 128, 2), "half_bias"),  # the last group is incomplete
    ("fp8_block", 130, 384, 256, FLOAT32, WgmmaTiling(2, 192, 2, 2, 3), "half_bias"),
    ("fp8_block", 9, 128, 144, FLOAT16, None, "half_bias"),
    ("int8", 63, 72, 272, BFLOAT16, WgmmaTiling(1, 128, 2), "gated"),
    ("fp8", 129, 65, 144, FLOAT16, WgmmaTiling(2, 128, 2, early=True), "gated"),
    ("fp8_block", 67, 256, 272, BFLOAT16, WgmmaTiling(1, 128, 2), "gated"),
    ("fp8", 9, 136, 528, BFLOAT16, FlatWgmmaTiling(1, 3, 2), "half_bias"),
    ("int8", 40, 65, 400, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2), "half_bias"),  # padded to 48 rows: int8 has no wgmma of 40
    ("int8", 3, 72, 144, FLOAT32, FlatWgmmaTiling(1, 2, 4), "half_bias"),  # one block has no step of K
    ("fp8", 17, 65, 272, FLOAT16, FlatWgmmaTiling(1, 2, 2), "gated"),
    ("int8", 64, 64, 128, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2), "gated"),
)


def options(words):
    """The options that these words name."""
    return {name: value for word in words.split() for name, value in OPTIONS[word].items()}


def of_one_row(warps, splits, unroll):
    """A tiling."""
    return TensorCoreGemvTiling(warps, splits, 1, unroll, 1, 1)


def odd():
    """Each kernel in each format."""
    for form, n, k, dtype, tiling, words in OF_ONE_ROW:
        yield quantized_product("tensor_core_gemv", form, 1, n, k, dtype, **options(words), tiling=of_one_row(*tiling))
    wide = dict(out_dtype=FLOAT32)
    for form, x in EXTREMES:
        yield quantized_product("tensor_core_gemv", form, 1, 17, 384, BFLOAT16, **wide, magnitude=x, tiling=of_one_row(2, 2, 2))
    for form, heads, kv_heads, head_dim, k, dtype, tiling, words in QKV_OF_ONE_ROW:
        yield quantized_qkv(form, heads, kv_heads, head_dim, k, dtype, **options(words), tiling=of_one_row(*tiling))
    for form, m, n, k, dtype, tiling, words in OF_SEVERAL_ROWS:
        yield quantized_product("tensor_core_gemv", form, m, n, k, dtype, **options(words), tiling=TensorCoreGemvTiling(*tiling))
    for form, x in EXTREMES:
        tiling = TensorCoreGemvTiling(2, 2, 2, 1, 8)
        yield quantized_product("tensor_core_gemv", form, 2, 17, 384, BFLOAT16, **wide, magnitude=x, tiling=tiling)
    yield quantized_product("tensor_core_gemv", "int4/32", 2, 40, 128)
    yield quantized_product("tensor_core_gemv", "nf4/nested", 9, 24, 256, FLOAT16)
    for form, m, n, k, dtype, tiling, words in OF_CODES:
        variant = "flat" if isinstance(tiling, FlatWgmmaTiling) else "wgmma"
        yield quantized_product(variant, form, m, n, k, out_dtype=dtype, **options(words), tiling=tiling)


OF_4_BITS = ("int4/128", "int4/32_zeros", "int4/32_minimums", "int4/64", "nf4/nested", "nf4/not_nested")
LARGE_OF_ONE_ROW = (  # N, K, dtype, options
    (6144, 4096, BFLOAT16, "norm"),
    (14336, 4096, BFLOAT16, "norm gated"),
    (4096, 14336, BFLOAT16, "in_place"),
    (4096, 4096, FLOAT16, "residual wide"),
    (3072, 2048, BFLOAT16, "norm bias"),
    (8192, 2048, FLOAT16, "norm gated"),
    (2048, 8192, BFLOAT16, "in_place"),
    (1003, 2176, BFLOAT16, "norm bias in_place"),
    (32001, 2048, BFLOAT16, "norm wide"),
)
LARGE_OF_SEVERAL_ROWS = (
    (6144, 4096, BFLOAT16, "bias"),
    (4096, 4096, FLOAT16, "wide"),
    (14336, 4096, BFLOAT16, "gated"),
    (4096, 14336, BFLOAT16, ""),
    (3072, 2048, FLOAT16, "bias"),
    (2048, 8192, BFLOAT16, "wide"),
    (1003, 2176, BFLOAT16, "bias"),
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
    for form, (n, k, dtype, words) in itertools.product((*OF_4_BITS, "int8", "fp8"), LARGE_OF_ONE_ROW):
        yield quantized_product("tensor_core_gemv", form, 1, n, k, dtype, **options(words), **repeats)
    for form in (*OF_4_BITS, "int8", "fp8"):
        yield quantized_qkv(form, 32, 8, 128, 4096, **repeats)
        yield quantized_qkv(form, 32, 8, 64, 2048, FLOAT16, bias=True, slot=-1, **repeats)
        yield quantized_qkv(form, 32, 8, 128, 4096, **repeats, codes="fp8_e4m3", smooth=True)
    for form, (n, k, dtype, words), m in itertools.product(OF_4_BITS, LARGE_OF_SEVERAL_ROWS, (2, 8, 13, 16)):
        yield quantized_product("tensor_core_gemv", form, m, n, k, dtype, **options(words), **repeats)
    products = [(form, *one) for form in ("fp8", "int8") for one in LARGE_CODES] + [("fp8_block", "wgmma", *one) for one in LARGE_BLOCKS]
    for form, variant, m, n, k, gated in products:
        yield quantized_product(variant, form, m, n, k, bias=not gated, gated=gated)
    for form, (m, k) in itertools.product(("int8", "fp8"), ((300, 14336), (128, 14336), (131, 32768), (3, 32776))):
        yield quantize_rows(m, k, form)
