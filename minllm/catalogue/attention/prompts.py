"""The launches of FlashAttention-2 and -3."""

import itertools

from minllm.catalogue.attention.paged import BLOCK_SIZE, TENSOR_CORES, attention
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.attention.splits import LARGE as STEPS
from minllm.catalogue.launch import FP8_TARGETS, HOPPER, TARGETS, MachineCode
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, quantized
from minllm.kernels.attention.flash_attention_3.prompts import shape_for
from minllm.kernels.attention.flash_attention_3.tiles import TileShape
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.quantization.formats import kv_format

SHORT, LONG = 100, 8192  # tokens of a prompt of few tiles, and of one with many
SM_COUNT = 132  # an H200
# (format, head_dim, dtype, tokens) of prompts over quantised caches.
QUANTIZED = (
    *(("int8", 128, BFLOAT16, LONG), ("int8", 96, FLOAT16, LONG), ("int4", 128, BFLOAT16, LONG), ("int4", 256, FLOAT16, LONG)),
    *(("int4", 64, BFLOAT16, SHORT), ("fp8_e4m3", 128, BFLOAT16, LONG), ("fp8_e5m2", 64, FLOAT16, LONG)),
)
# (head_dim, tokens, whether each context is one block) of FlashAttention-3: tiles for prompts of all lengths.
LAYOUTS = (
    *((64, LONG, False), (64, SHORT, False), (80, LONG, False), (128, LONG, False), (128, LONG, True), (128, 1, False)),
    *((256, LONG, False), (256, 1, True)),
)
# The same over fp8 codes.
FLOAT8_LAYOUTS = ((64, LONG, False), (96, SHORT, False), (128, LONG, False), (128, LONG, True), (128, 1, False))
TILES = (16, 16, 1)  # query rows, keys, warps
FLOAT32_TILES = (4, 8, 2, 2)  # 8 query rows, 16 keys
# (new tokens, keys, heads, KV heads, head_dim, dtype, block size, window, magnitude)
CHUNKS = (
    (1, 1, 2, 2, 16, BFLOAT16),
    (2, 2, 2, 2, 16, FLOAT16),
    (15, 37, 2, 2, 40, BFLOAT16),  # 40 is padded to 48
    (16, 16, 2, 2, 8, BFLOAT16, 8),
    (17, 31, 2, 2, 16, FLOAT16, 1),
    (29, 29, 4, 4, 16, BFLOAT16, 256),
    ((3, 0, 17, 1), (5, 4, 17, 0), 6, 2, 16, BFLOAT16),  # a padding sequence, and one that rests
    (7, 50, 8, 1, 16, BFLOAT16),
    (18, 67, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 7),
    (5, 67, 2, 2, 16, FLOAT16, 5, 33),
    (5, 40, 2, 2, 16, FLOAT16, BLOCK_SIZE, 1),
    (4, 2, 2, 2, 16, BFLOAT16),  # two rows before the first key: they see nothing
    (9, 30, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 200.0),  # scores beyond 1e5
)
FLOAT32_CHUNKS = (
    (1, 1, 2, 2, 8, FLOAT32),
    (7, 18, 6, 2, 40, FLOAT32, 1),
    ((8, 9), (8, 16), 2, 2, 16, FLOAT32, 8),
    ((3, 0, 2, 1), (5, 4, 17, 0), 4, 4, 8, FLOAT32),
    (11, 37, 2, 2, 8, FLOAT32, 256, 6),
    (4, 2, 2, 2, 8, FLOAT32),
    (3, 20, 2, 2, 16, FLOAT32, BLOCK_SIZE, 0, 200.0),
)
# The same, then consumers of 64 rows each, and keys of a tile.
HOPPER_CHUNKS = (
    (1, 1, 2, 2, 16, BFLOAT16, 8, 0, 1, 16),
    ((4, 0, 3), (2, 5, 0), 2, 2, 8, FLOAT16, 8, 0, 1, 16),
    ((130, 3), (150, 40), 1, 1, 64, BFLOAT16, 8, 0, 2, 32),  # two pages a thread
    (65, 67, 2, 1, 40, FLOAT16, 256, 0, 1, 32),  # one block
    (129, 161, 1, 1, 80, BFLOAT16, 64, 0, 3, 32),
    (70, 131, 2, 1, 96, FLOAT16, BLOCK_SIZE, 37, 1, 32),
    (9, 40, 2, 1, 16, BFLOAT16, BLOCK_SIZE, 1, 1, 32),
    (33, 33, 2, 1, 256, BFLOAT16, 32, 0, 1, 16),
    (9, 30, 2, 2, 16, BFLOAT16, BLOCK_SIZE, 0, 200.0, 1, 16),
    (9, 30, 2, 2, 16, FLOAT16, BLOCK_SIZE, 0, 50.0, 1, 16),
)
# (new tokens, keys, heads, KV heads, head_dim, dtype, block size, window, magnitude) over fp8 codes, then consumers, and keys of a tile.
FLOAT8_CHUNKS = (
    (1, 1, 2, 2, 16, BFLOAT16, 8, 0, 1.0, 1, 32),
    ((4, 0, 66), (2, 5, 66), 2, 1, 16, FLOAT16, 8, 0, 1.0, 1, 64),  # two rows before the first key: they see nothing
    ((130, 3), (150, 40), 1, 1, 64, BFLOAT16, 8, 0, 1.0, 2, 32),
    (65, 67, 2, 1, 48, FLOAT16, 256, 0, 1.0, 1, 96),  # one block
    (70, 131, 2, 1, 96, FLOAT16, BLOCK_SIZE, 37, 1.0, 1, 32),
    (9, 40, 2, 1, 32, BFLOAT16, BLOCK_SIZE, 1, 1.0, 1, 32),
    (9, 200, 4, 1, 128, BFLOAT16, 64, 0, 30.0, 1, 128),
)
# Whole prompts and ragged chunks of models.
LARGE = (
    (512, 512, 32, 8, 64, BFLOAT16),
    ((1, 5, 129), (1328, 18, 463), 8, 2, 128, FLOAT16),
    (257, 2011, 6, 2, 40, BFLOAT16, 8),
    ((127, 128, 131, 0, 1), (127, 300, 131, 5, 0), 4, 4, 80, BFLOAT16, 1),
    ((61, 67), (509, 67), 8, 1, 96, FLOAT16, 256),
    (130, 1031, 4, 2, 256, BFLOAT16, 2048),
    (300, 1500, 8, 2, 128, BFLOAT16, BLOCK_SIZE, 257),
    (65, 999, 4, 2, 64, FLOAT16, BLOCK_SIZE, 1),
    (100, 700, 4, 2, 64, BFLOAT16, BLOCK_SIZE, 0, 100.0),
    (1031, 1031, 71, 1, 64, BFLOAT16),  # enough blocks for the large tiles
    (129, 613, 6, 2, 80, FLOAT32),
    ((1, 65), (77, 65), 4, 2, 256, FLOAT32, 1),
    (200, 900, 4, 2, 128, FLOAT32, BLOCK_SIZE, 100),
)


def prompt(variant, tokens, heads, kv_heads, head_dim, dtype=BFLOAT16, **options):
    """The launch of one whole prompt."""
    return attention(variant, tokens, tokens, heads, kv_heads, head_dim, dtype, **options)


def bounded_blocks(launch):
    """The number of blocks per SM in the launch bounds of a launch's first kernel."""
    return launch.dry_run(HOPPER[0])[0].launch.kernel.options["launch_bounds"][1]


def compiled():
    """Kernels for whole prompts, with all tiles that launchers choose."""
    for dtype in HALF_DTYPES:
        for head_dim in (40, 64, 96, 128, 256):
            for tiles in tiles_of(head_dim):
                yield flash_attention_2_code("flash_attention_2", head_dim, tiles, dtype)
    yield flash_attention_2_code("strided/flash_attention_2", 128, tiles_of(128)[0], BFLOAT16, HOPPER, layers=2)
    for head_dim in (40, 64, 128, 256):
        launch = prompt("flash_attention_2", SHORT, 32, 8, head_dim, FLOAT32)
        yield MachineCode(f"attention/flash_attention_2_float32/{head_dim}/float32", launch, 1, ("LDG*128*", "MUFU.EX2"))
    yield from compiled_quantized()
    yield from compiled_float8()
    for dtype in HALF_DTYPES:
        yield from compiled_flash_attention_3(dtype)


def tiles_of(head_dim):
    """The tiles for short and for long prompts."""
    return sorted({flash_attention_2.tiles_for(head_dim, tokens, 32, 1, SM_COUNT) for tokens in (SHORT, LONG)})


def flash_attention_2_code(name, head_dim, tiles, dtype, targets=TARGETS, **options):
    """FlashAttention-2 on tensor cores with these tiles."""
    launch = prompt("flash_attention_2", SHORT, 32, 8, head_dim, dtype, tiles=tiles, **options)
    name = f"attention/{name}/{head_dim}/{tiles[0]}x{tiles[1]}/{dtype}"
    return MachineCode(name, launch, bounded_blocks(launch), TENSOR_CORES, targets=targets)


def compiled_quantized():
    """FlashAttention-2 over quantised caches: one block of 8 warps, or two of 4, fills an SM's registers."""
    for name, head_dim, dtype, tokens in QUANTIZED:
        tiles = quantized.tiles_for(kv_format(name, head_dim), tokens)
        targets = FP8_TARGETS if name.startswith("fp8") else TARGETS
        targets = targets if dtype == BFLOAT16 else (targets[-2],)  # the dtypes differ only in loading queries and storing outputs
        launch = quantized_attention("flash_attention_2_quantized", SHORT, SHORT, name, 32, 8, head_dim, dtype, tiles=tiles)
        code = f"attention/flash_attention_2_quantized/{name}/{'x'.join(map(str, tiles))}/{head_dim}/{dtype}"
        contains = (*TENSOR_CORES[:3], "LDG*128*", "STS*128*", "MUFU.EX2")
        yield MachineCode(code, launch, 1 if tiles[2] > 4 else 2, contains, targets=targets)


def compiled_flash_attention_3(dtype):
    """FlashAttention-3: keys gathered from pages or copied as one box."""
    for head_dim, tokens, whole in LAYOUTS if dtype == BFLOAT16 else LAYOUTS[3:4]:
        shape = shape_for(head_dim, tokens)
        launch = prompt("flash_attention_3", SHORT, 32, 8, head_dim, dtype, block_size=SHORT if whole else BLOCK_SIZE, shape=shape)
        name = f"attention/flash_attention_3/{head_dim}/{shape.query_tile}x{shape.key_tile}/{'whole' if whole else 'paged'}/{dtype}"
        yield MachineCode(name, launch, 1, ("HGMMA*", "UTMALDG.4D*", "MUFU.EX2"), targets=HOPPER)


def compiled_float8():
    """FlashAttention-3 over fp8 codes, gathered from pages or copied as one box; queries in float16 differ in loads and stores alone."""
    for head_dim, tokens, whole in FLOAT8_LAYOUTS:
        shape, dtype = shape_for(head_dim, tokens, codes=True), FLOAT16 if head_dim == 96 else BFLOAT16
        sizes, block_size = (SHORT, SHORT, "fp8_e4m3", 32, 8, head_dim, dtype), SHORT if whole else BLOCK_SIZE
        launch = quantized_attention("flash_attention_3_float8", *sizes, block_size=block_size, shape=shape)
        tiles = f"{shape.query_tile}x{shape.key_tile}/{'whole' if whole else 'paged'}"
        code = f"attention/flash_attention_3_float8/fp8_e4m3/{head_dim}/{tiles}/{dtype}"
        contains = ("QGMMA*E4M3.E4M3*", "UTMALDG.4D*", "LDSM*MT88.4*", "STSM*M88.4*", "F2FP*E4M3*", "MUFU.EX2")
        yield MachineCode(code, launch, 1, contains, targets=HOPPER)


def small():
    """Prompts of which formulas count the bytes, then chunks with tiles so small that a few tokens cross their edges, and layers."""
    short = dict(query_lens=(3, 0, 2), context_lens=(18, 4, 2), heads=2, kv_heads=1, head_dim=16, layers=3)
    yield prompt("flash_attention_2", 40, 2, 1, 32, tiles=TILES)
    yield prompt("flash_attention_2", 20, 2, 1, 16, FLOAT32, tiles=FLOAT32_TILES)
    yield prompt("flash_attention_2_float32", 5, 4, 2, 16, FLOAT32, tiles=FLOAT32_TILES)
    for chunk in CHUNKS:
        yield attention("flash_attention_2", *chunk, tiles=TILES)
    for tiles in ((32, 16, 1), (32, 32, 2), (16, 48, 1), TILES):  # two 16-row tiles a warp, two warps, uneven tiles
        yield attention("flash_attention_2", 35, 41, 2, 2, 16, tiles=tiles)
        yield attention("flash_attention_2", 3, 19, 2, 2, 144, tiles=tiles)  # from 16 rows a warp on, Q is not kept in registers
    for chunk in FLOAT32_CHUNKS:
        yield attention("flash_attention_2", *chunk, tiles=FLOAT32_TILES)
    yield attention("flash_attention_2", 5, 66, 2, 2, 16)  # the tiles that users get
    yield attention("flash_attention_2", 3, 5, 2, 2, 8, FLOAT32)
    for dtype, block_size, tiles in ((FLOAT16, 8, TILES), (BFLOAT16, 64, TILES), (FLOAT32, 8, FLOAT32_TILES)):
        yield attention("flash_attention_2", **short, dtype=dtype, block_size=block_size, tiles=tiles)
    yield quantized_attention("flash_attention_2_quantized", 40, 40, "int8", 2, 1, 32, tiles=TILES)
    by_channel = dict(block_size=32, residual_window=32, tiles=TILES)
    yield quantized_attention("flash_attention_2_quantized", 8, 136, "kivi_int4", 2, 1, 32, **by_channel)
    for name, head_dim in (("int8", 32), ("int4", 64)):
        yield quantized_attention("flash_attention_2_quantized", 19, 40, name, 2, 1, head_dim, tiles=TILES)
    shape = TileShape(32, 1, 32, codes=True)
    yield quantized_attention("flash_attention_3_float8", 70, 70, "fp8_e4m3", 2, 1, 32, shape=shape)
    for *chunk, consumers, key_tile in FLOAT8_CHUNKS:
        yield float8_chunk(*chunk, shape=TileShape(chunk[4], consumers, key_tile, codes=True))
    yield prompt("flash_attention_3", 70, 2, 1, 32, shape=TileShape(32, 1, 32))
    yield attention("flash_attention_3", **short, dtype=FLOAT16, block_size=8, shape=TileShape(16, 1, 16))
    for *chunk, consumers, key_tile in HOPPER_CHUNKS:
        yield attention("flash_attention_3", *chunk, shape=TileShape(chunk[4], consumers, key_tile))


def float8_chunk(tokens, keys, heads, kv_heads, head_dim, dtype, block_size=BLOCK_SIZE, window=0, magnitude=1.0, **options):
    """A chunk over fp8 codes."""
    sizes = (tokens, keys, "fp8_e4m3", heads, kv_heads, head_dim, dtype, block_size)
    return quantized_attention("flash_attention_3_float8", *sizes, sliding_window=window, magnitude=magnitude, **options)


def large():
    """Prompts, chunks of prompts and decode steps of models, for kernels that take any number of new tokens."""
    for variant in ("flash_attention_2", "flash_attention_3"):
        for sizes in (*LARGE, *STEPS[5:7], STEPS[9], *CHUNKS, *FLOAT32_CHUNKS):
            yield attention(variant, *sizes)  # with the tiles that users get
    for variant in ("materialized", "flash_attention_1"):
        for sizes in (LARGE[0], *LARGE[2:9], *LARGE[11:], STEPS[9]):
            yield attention(variant, *sizes)
    for i, tiles in enumerate(((64, 64, 4), (128, 64, 4), (128, 32, 4), (64, 32, 4))):
        yield attention("flash_attention_2", *LARGE[i % 2], tiles=tiles)
    yield from large_pages()
    for sizes in (*LARGE[:3], *LARGE[4:10], *STEPS[5:7]):
        if sizes[4] % 16 == 0:  # heads of fp8 codes are whole 16 bytes
            yield float8_chunk(*sizes)  # with the tiles that users get
    for *chunk, _, _ in FLOAT8_CHUNKS:
        yield float8_chunk(*chunk)


def large_pages():
    """FlashAttention-3 on pages of all sizes: ragged chunks on three consumers and on two, many pieces of work a block, a window."""
    for block_size, head_dim in zip((8, 16, 32, 64, 128, 256, 2048), itertools.cycle((64, 80, 96, 128, 256))):
        for tokens, window in (((1100, 5, 0, 300), 0), ((200, 64), 130)):
            keys = tuple(length + 731 for length in tokens)
            yield attention("flash_attention_3", tokens, keys, 8, 2, head_dim, BFLOAT16, block_size, window)
