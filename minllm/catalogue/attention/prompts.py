"""The launches of FlashAttention-2 and -3."""

from minllm.catalogue.attention.paged import BLOCK_SIZE, TENSOR_CORES, attention
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.launch import FP8_TARGETS, HOPPER, TARGETS, MachineCode
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, quantized
from minllm.kernels.attention.flash_attention_3 import flash_attention_3
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


def prompt(variant, tokens, heads, kv_heads, head_dim, dtype=BFLOAT16, **options):
    """The launch of one whole prompt."""
    return attention(variant, (tokens,), (tokens,), heads, kv_heads, head_dim, dtype, **options)


def bounded_blocks(launch, target=HOPPER[0]):
    """The number of blocks per SM in the launch bounds of a launch's first kernel."""
    return launch.dry_run(target)[0].launch.kernel.options["launch_bounds"][1]


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
        launch = quantized_attention("flash_attention_2_quantized", (SHORT,), (SHORT,), name, 32, 8, head_dim, dtype, tiles=tiles)
        code = f"attention/flash_attention_2_quantized/{name}/{'x'.join(map(str, tiles))}/{head_dim}/{dtype}"
        contains = (*TENSOR_CORES[:3], "LDG*128*", "STS*128*", "MUFU.EX2")
        yield MachineCode(code, launch, 1 if tiles[2] > 4 else 2, contains, targets=targets)


def compiled_flash_attention_3(dtype):
    """FlashAttention-3: keys gathered from pages or copied as one box."""
    for head_dim, tokens, whole in LAYOUTS if dtype == BFLOAT16 else LAYOUTS[3:4]:
        shape = flash_attention_3.shape_for(head_dim, tokens)
        launch = prompt("flash_attention_3", SHORT, 32, 8, head_dim, dtype, block_size=SHORT if whole else BLOCK_SIZE, shape=shape)
        name = f"attention/flash_attention_3/{head_dim}/{shape.query_tile}x{shape.key_tile}/{'whole' if whole else 'paged'}/{dtype}"
        yield MachineCode(name, launch, 1, ("HGMMA*", "UTMALDG.4D*", "MUFU.EX2"), targets=HOPPER)


def small():
    """A prompt of which formulas count the bytes, then a chunk with a window, padding, and a row that sees nothing."""
    chunks = dict(query_lens=(17, 0, 4), context_lens=(35, 4, 2), heads=2, kv_heads=1, head_dim=40)
    short = dict(query_lens=(3, 0, 2), context_lens=(18, 4, 2), heads=2, kv_heads=1, head_dim=16, dtype=FLOAT16, block_size=8)
    yield prompt("flash_attention_2", 40, 2, 1, 32, tiles=(16, 16, 1))
    yield prompt("flash_attention_2_float32", 20, 2, 1, 16, FLOAT32, tiles=(4, 8, 2, 2))
    yield attention("flash_attention_2", **chunks, sliding_window=9, block_size=5, tiles=(16, 16, 1))
    yield attention("flash_attention_2", **short, layers=3, tiles=(16, 16, 1))
    yield quantized_attention("flash_attention_2_quantized", (40,), (40,), "int8", 2, 1, 32, tiles=(16, 16, 1))
    by_channel = dict(block_size=32, residual_window=32, tiles=(16, 16, 1))
    yield quantized_attention("flash_attention_2_quantized", (8,), (136,), "kivi_int4", 2, 1, 32, **by_channel)
    for name, head_dim in (("int8", 32), ("int4", 64)):
        yield quantized_attention("flash_attention_2_quantized", (19,), (40,), name, 2, 1, head_dim, tiles=(16, 16, 1))
    yield prompt("flash_attention_3", 70, 2, 1, 32, shape=TileShape(32, 1, 32))
    yield attention("flash_attention_3", **short, layers=3, shape=TileShape(16, 1, 16))
