"""The launches of mixed-input GEMMs, Hopper only: x in 16 bits, weights as codes in groups, which become 16 bits in registers."""

import itertools

from minllm.catalogue.launch import HOPPER, MachineCode
from minllm.catalogue.matmul.quantized import FORMATS, family, quantized_product
from minllm.catalogue.noise import WithoutContents
from minllm.catalogue.rows import BFLOAT16, FLOAT16
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling, choose_tiling


def product(form, m, n, k, dtype, gated, tiling=None):
    """x @ weight.T + bias, or silu(gate) * up."""
    return quantized_product("wgmma", form, m, n, k, dtype, bias=not gated, gated=gated, tiling=tiling)


CHOSEN = (  # the tilings chosen for 16 to 2,048 rows: form, M, N, gated
    ("int4/128", 2048, 4096, False), ("int4/32_zeros", 2048, 14336, True), ("int4/64_zeros", 128, 4096, False),
    ("int4/128", 128, 4096, True), ("int4/32_minimums", 2048, 4096, False), ("int4/32_minimums", 16, 4096, True),
    ("int4/128", 256, 6144, False), ("int4/32_zeros", 256, 2048, True), ("int4/32_minimums", 64, 28672, False),
    ("nf4/nested", 2048, 4096, False), ("nf4/nested", 2048, 4096, True), ("nf4/nested", 16, 4096, False),
    ("nf4/not_nested", 128, 4096, True), ("nf4/nested", 256, 4096, False), ("nf4/nested", 64, 14336, True),
    ("int8_groups", 2048, 4096, False), ("int8_groups", 2048, 4096, True), ("int8_groups", 16, 4096, False),
    ("int8_groups", 256, 4096, False), ("int8_groups", 64, 28672, False),
)  # fmt: skip


def compiled():
    """Mixed-input GEMMs, Hopper only. With 256 rows and few outputs a block's warpgroups divide K; with 64 and many two share an SM."""
    for dtype, (form, m, n, gated) in itertools.product(HALF_DTYPES, CHOSEN):
        launch, kind = quantized_product("wgmma", form, m, n, 4096, dtype, gated=gated), form.partition("/")[2] or "32"
        arrays, code = launch.arrays(WithoutContents()), family(form).removesuffix("_groups")
        codec = FORMATS[form].codec
        decoder = codec.tiles(dtype.name, *codec.kind(arrays["weight"], 4096))
        tiling = choose_tiling(m, n, 4096, gated, decoder.row_bytes, decoder.table.bytes)
        contains = ("HGMMA.64x*", "UTMALDG.2D*", "LDS" if code == "int8" else "LDS.128", *(("UTMASTG.2D*",) if tiling.batches else ()))
        name = f"matmul/mixed_input_{code}/{'gated/' if gated else ''}{tiling.rows}x{tiling.tokens}/{kind}/{dtype}"
        yield MachineCode(name, launch, tiling.blocks, contains, targets=HOPPER)


SMALL = (  # form, M, N, K, dtype, gated, tiling
    ("int4/128", 20, 72, 256, BFLOAT16, False, MixedInputTiling(1, 16, 2)),  # two chunks of x
    ("int4/32_zeros", 9, 144, 96, FLOAT16, False, MixedInputTiling(2, 16, 3)),  # half a step at the end
    ("int4/64", 3, 88, 320, BFLOAT16, False, MixedInputTiling(1, 8, 2, splits=2)),  # two and three steps
    ("int4/128_zeros", 11, 80, 256, BFLOAT16, True, MixedInputTiling(2, 16, 2, splits=4)),
    ("int4/32", 7, 40, 64, FLOAT16, True, MixedInputTiling(1, 8, 2)),  # a single step
    ("int4/32_minimums", 5, 72, 96, BFLOAT16, False, MixedInputTiling(1, 8, 2)),
    ("int4/32_minimums", 8, 40, 128, FLOAT16, True, MixedInputTiling(1, 8, 2, splits=2)),
    ("nf4/nested", 11, 80, 192, BFLOAT16, False, MixedInputTiling(1, 16, 2)),
    ("nf4/not_nested", 6, 136, 320, FLOAT16, False, MixedInputTiling(2, 8, 2, splits=2)),
    ("nf4/nested", 9, 48, 64, FLOAT16, True, MixedInputTiling(1, 16, 2)),
    ("int8_groups", 10, 72, 160, BFLOAT16, False, MixedInputTiling(1, 16, 2)),
    ("int8_groups", 3, 136, 96, FLOAT16, True, MixedInputTiling(2, 8, 2, splits=2)),
    ("int4/128", 20, 72, 640, BFLOAT16, False, MixedInputTiling(2, 16, 4, k_groups=2)),  # ten steps, two chunks of x
    ("int4/32_zeros", 9, 144, 608, FLOAT16, False, MixedInputTiling(2, 16, 6, k_groups=2)),  # five steps each, the last one half
    ("int4/64", 3, 88, 704, BFLOAT16, False, MixedInputTiling(2, 8, 4, splits=2, k_groups=2)),  # five and six steps
    ("int4/128_zeros", 11, 80, 384, FLOAT16, True, MixedInputTiling(2, 16, 4, splits=2, k_groups=2)),
    ("int4/32_minimums", 7, 40, 64, BFLOAT16, True, MixedInputTiling(2, 8, 4, k_groups=2)),  # one warpgroup has no step
    ("nf4/nested", 11, 80, 320, BFLOAT16, False, MixedInputTiling(2, 16, 4, splits=3, k_groups=2)),  # one, two and two steps
    ("nf4/not_nested", 6, 40, 576, FLOAT16, True, MixedInputTiling(2, 8, 4, k_groups=2)),
    ("int8_groups", 10, 136, 672, BFLOAT16, False, MixedInputTiling(2, 16, 4, k_groups=2)),
    # Persistent: blocks of one to three tiles, the last ones with few rows of x and of weight.
    ("int4/128", 40, 264, 384, BFLOAT16, False, MixedInputTiling(2, 32, 4, batches=2)),
    ("int4/32_zeros", 20, 144, 96, FLOAT16, False, MixedInputTiling(1, 16, 3, batches=1)),  # two steps per tile
    ("int4/32_minimums", 37, 80, 96, FLOAT16, True, MixedInputTiling(2, 16, 3, batches=1)),
    ("int4/128_zeros", 40, 144, 256, BFLOAT16, True, MixedInputTiling(2, 64, 3, batches=2)),
    ("nf4/nested", 20, 272, 192, BFLOAT16, False, MixedInputTiling(2, 16, 2, batches=1)),
    ("nf4/not_nested", 17, 144, 64, FLOAT16, True, MixedInputTiling(2, 16, 2, batches=1)),
    ("int8_groups", 33, 136, 160, BFLOAT16, False, MixedInputTiling(1, 32, 2, batches=2)),
    ("int8_groups", 20, 136, 96, FLOAT16, True, MixedInputTiling(2, 16, 2, batches=1)),
)


def small():
    """Every way to divide the work, and odd shapes."""
    for shape in SMALL:
        yield product(*shape)


def large():
    """Shapes of models and odd ones with the tilings chosen for them, and the largest tiles."""
    forms = ("int4/128", "int4/32_zeros", "int4/32_minimums", "nf4/nested", "nf4/not_nested", "int8_groups")
    shapes = (
        (13, 4096, 14336, BFLOAT16, False), (65, 4096, 4096, BFLOAT16, False), (130, 1008, 2176, FLOAT16, False),
        (256, 6144, 4096, BFLOAT16, False), (300, 3008, 2048, BFLOAT16, True), (1111, 2064, 1152, BFLOAT16, False),
    )  # fmt: skip
    for form, shape in itertools.product(forms, shapes):
        yield product(form, *shape)
    for form, deep in (("int4/128", 6), ("nf4/nested", 4), ("int8_groups", 6)):
        for m, n, k, stages, splits, k_groups, gated in (
            (256, 6144, 4096, 4, 2, 1, False), (256, 6144, 4096, deep, 1, 2, False), (256, 4096, 4096, deep, 2, 2, False),
            (250, 4112, 14464, deep, 2, 2, False), (131, 2000, 2176, deep, 2, 2, True), (300, 6144, 4224, 4, 1, 2, False),
        ):  # fmt: skip
            yield product(form, m, n, k, BFLOAT16, gated, MixedInputTiling(2, 256, stages, splits, k_groups))
