"""The launches over quantised caches in all formats: steps by split_quantized, prompts by FlashAttention-2."""

from minllm.catalogue.attention import prompts, splits
from minllm.catalogue.attention.benchmarks import prefill_flops, ragged_lengths
from minllm.catalogue.attention.paged import BLOCK_SIZE, attention
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.launch import TFLOP_S, TOKENS_US, Measured, for_tuning
from minllm.catalogue.rows import BFLOAT16, FLOAT16
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format

SHAPES = (SplitShape(1, 16, 2, 1, turns=2), SplitShape(2, 16, 3, 1, turns=1), SplitShape(1, 32, 4, 2, turns=2))
SHAPES_OF_COPIES = (SplitShape(1, 16, 2, 1, tensor_copies=True, turns=2), SplitShape(2, 32, 3, 1, tensor_copies=True, turns=1))
QUANTISED = "decode attention, quantised"  # the benchmark of steps
TILES = (16, 16, 1)  # so small that short prompts cross them
# (new tokens, keys, format, heads, KV heads, head_dim, dtype, block size, group size, window, magnitude)
RAGGED = ((1,) * 5, (33, 1, 0, 70, 16))
STEPS = (
    (1, 37, "int8", 8, 1, 80, BFLOAT16),  # five chunks a row
    ((1, 1), (3, 41), "int8", 18, 2, 32, BFLOAT16, 12, 16),  # 9 heads a group
    (1, 35, "int4", 2, 1, 96, FLOAT16, BLOCK_SIZE, 32),  # 3 groups: chunks of scales cross keys
    (1, 20, "int4", 2, 1, 256, BFLOAT16, 4, 32),  # two chunks a key
    (1, 30, "int8", 2, 2, 32, BFLOAT16, BLOCK_SIZE, None, 0, 200.0),  # scores beyond 1e5
    (1, 30, "int4", 2, 2, 32, FLOAT16, BLOCK_SIZE, None, 0, 60.0),
    (1, 19, "fp8_e4m3", 2, 2, 48, FLOAT16, 5),
)
FETCHED = (  # by the copy engine: one line a key and several, boxes of a tile and of half a tile
    (*RAGGED, "int4", 4, 2, 128, BFLOAT16, 16, 32),
    ((1, 0, 1), (33, 2, 90), "int8", 9, 1, 64, FLOAT16, 48, None, 9),
    ((1, 1), (60, 41), "fp8_e4m3", 4, 1, 128, BFLOAT16, 32),
    (1, 45, "int8", 2, 1, 128, BFLOAT16, 8, 32),
)
PROMPTS = (  # then the tiles
    ((19, 0, 5), (19, 7, 35), "int8", 2, 1, 32, BFLOAT16, 8, None, 0, 1.0, TILES),
    ((3, 1), (21, 0), "int4", 4, 2, 64, FLOAT16, 32, None, 0, 1.0, TILES),
    (17, 40, "int8", 2, 1, 96, BFLOAT16, BLOCK_SIZE, 32, 9, 1.0, (32, 16, 2)),
    (6, 33, "int4", 1, 1, 96, FLOAT16, 48, None, 0, 1.0, (32, 32, 2)),
    (5, 20, "int4", 2, 1, 128, BFLOAT16, 5, 64, 0, 1.0, (32, 32, 2)),
    (4, 18, "int8", 1, 1, 256, BFLOAT16, BLOCK_SIZE, None, 0, 1.0, TILES),
    (7, 30, "fp8_e4m3", 1, 1, 80, FLOAT16, BLOCK_SIZE, None, 0, 1.0, (32, 16, 1)),
)
OF_PAGES = ((1,) * 5, (1, 600, 37, 0, 1501), 16, 4)
# Sizes of models: (new tokens, keys, heads, KV heads, head_dim, dtype, block size, window).
LARGE_STEPS = (
    *splits.LARGE[:5],
    *splits.LARGE[8:10],
    ((1, 1), (4001, 129), 32, 8, 128),
    ((1,) * 40, tuple(1 + 37 * i % 900 for i in range(40)), 32, 8, 128),  # several blocks per SM
    *((*OF_PAGES, head_dim, BFLOAT16, block_size) for block_size, head_dim in ((8, 64), (16, 96), (128, 96))),
    *((*OF_PAGES, head_dim, BFLOAT16, block_size, 130) for block_size, head_dim in ((32, 128), (64, 256), (256, 64))),
)
LARGE_PROMPTS = (
    *prompts.LARGE[:2],
    *prompts.LARGE[4:8],
    prompts.LARGE[9],
    ((1, 65), (77, 65), 4, 2, 256, BFLOAT16, 1),
    (200, 900, 4, 2, 128, BFLOAT16, BLOCK_SIZE, 100),
)


def step(*sizes, **options):
    """A decode step."""
    return quantized_attention("split_quantized", *sizes, **options)


def prompt(*sizes, **options):
    """New tokens of any number."""
    return quantized_attention("flash_attention_2_quantized", *sizes, **options)


def small():
    """Fair shares of ragged batches and fixed splits, in every format, in blocks of all shapes; prompts and chunks of them."""
    for form, shape in zip(TOKEN_FORMATS, (SHAPES[1], SHAPES[2], SHAPES[1], SHAPES[2]), strict=True):
        window = ((1, 0, 1, 1), (50, 70, 12, 90), form, 12, 1, 32, FLOAT16, 32, None, 30)
        yield step(*window, sm_count=3, shape=SHAPES[0])
        yield step(*RAGGED, form, 4, 2, 64, BFLOAT16, 8, sm_count=3, shape=shape)
    for sizes in ((1, 1, "int8", 2, 2, 32), (1, 45, "int4", 4, 1, 96, BFLOAT16, 48), (*RAGGED, "fp8_e4m3", 4, 2, 64)):
        yield step(*sizes, sm_count=3, shape=SHAPES[0])
    for sizes in STEPS:
        yield step(*sizes, splits=2, shape=SHAPES[0])
    for i, sizes in enumerate(FETCHED):
        yield step(*sizes, sm_count=3, shape=SHAPES_OF_COPIES[i % 2])
    yield step(1, 70, "int8", 4, 2, 32)  # the block and the grid that users get
    for *sizes, tiles in PROMPTS:
        yield prompt(*sizes, tiles=tiles)
    for i, form in enumerate(TOKEN_FORMATS):  # a chunk behind a cached prefix, and padding
        yield prompt((9, 1, 0), (25, 16, 0), form, 4, 2, 32, (BFLOAT16, FLOAT16)[i % 2], tiles=TILES)


def large():
    """Contexts of models, on pages of all sizes; every format meets a part of them, as each takes seconds to compile."""
    for i, (tokens, keys, *sizes) in enumerate(LARGE_STEPS):
        for form in (TOKEN_FORMATS[i % 2], TOKEN_FORMATS[2 + i % 2]):
            yield of_model(step, tokens, keys, form, *sizes)
    for i, (tokens, keys, *sizes) in enumerate(LARGE_PROMPTS):
        for form in ("int8", TOKEN_FORMATS[1 + i % 3]):
            yield of_model(prompt, tokens, keys, form, *sizes)
    for i, sizes in enumerate(FETCHED):
        yield step(*sizes, sm_count=3, shape=SHAPES_OF_COPIES[1 - i % 2])
    for sizes in STEPS:
        yield step(*sizes)
    for form in ("int8", "int4"):
        yield step(*RAGGED, form, 4, 2, 64, BFLOAT16, 8, splits=3, shape=SHAPES[1])
        yield of_model(step, 1, 700, form, 4, 2, 64, magnitude=100.0)
        yield of_model(prompt, 100, 700, form, 4, 2, 64, magnitude=100.0)


def of_model(launch, tokens, keys, form, heads, kv_heads, head_dim, dtype=BFLOAT16, block_size=BLOCK_SIZE, window=0, magnitude=1.0):
    """A launch in a format of groups of its own size."""
    return launch(tokens, keys, form, heads, kv_heads, head_dim, dtype, block_size, sliding_window=window, magnitude=magnitude)


def measured():
    """Steps in tokens of context per second, with one block per sequence, then in blocks of 16; a prompt in FLOP/s.

    e5m2 behaves like e4m3, and is for tuning, as are other sizes and layouts.
    """
    forms = TOKEN_FORMATS[:3]
    for layout in (", contiguous", ""):
        yield from (measured_step(form, 64, 4096, layout) for form in forms)
    for tokens in (4096, 16384):
        yield measured_prompt("flash_attention_3_float8", "fp8_e4m3", tokens, 64)
    others = [(form, *sizes, ", contiguous") for sizes in ((1, 8192), (256, 1024)) for form in TOKEN_FORMATS]
    others += [("fp8_e5m2", 64, 4096, ", contiguous"), *((form, 64, 4096, ", ragged") for form in forms)]
    yield from for_tuning(measured_step(*one) for one in others)
    yield from for_tuning(measured_prompt("flash_attention_2_quantized", form, 4096) for form in forms)
    yield from for_tuning([measured_prompt("flash_attention_3_float8", "fp8_e4m3", 4096)])


def measured_step(form, sequences, context, layout, heads=32, kv_heads=8, head_dim=128):
    """One new token per sequence, beside minllm's bfloat16 kernel; layout ", ragged": lengths from context / 8 to context."""
    lengths = tuple(map(int, ragged_lengths(sequences, context))) if layout == ", ragged" else (context,) * sequences
    block_size = context if layout == ", contiguous" else BLOCK_SIZE
    launch = step((1,) * sequences, lengths, form, heads, kv_heads, head_dim, block_size=block_size)
    of_token = 2 * kv_heads * kv_format(form, head_dim).bytes_per_head
    case = f"{sequences}x{context}, {heads}/{kv_heads} heads, d {head_dim}, {form}{layout}"
    return Measured(
        launch, "split_quantized", case, QUANTISED, unit=TOKENS_US, work=sum(lengths) * of_token, set_bytes=sequences * context * of_token,
        tokens=sum(lengths), sample=2, rival=bfloat16_step(lengths, heads, kv_heads, head_dim, block_size),
    )  # fmt: skip


def bfloat16_step(lengths, heads, kv_heads, head_dim, block_size):
    """The launch beside which steps over codes are measured: the same step over numbers of 16 bits."""
    return attention("split_tensor_core", (1,) * len(lengths), lengths, heads, kv_heads, head_dim, BFLOAT16, block_size)


def measured_prompt(variant, form, tokens, heads=32, kv_heads=8, head_dim=128):
    """A whole prompt."""
    launch = quantized_attention(variant, tokens, tokens, form, heads, kv_heads, head_dim)
    set_bytes = 2 * tokens * (heads * head_dim * BFLOAT16.itemsize + kv_heads * kv_format(form, head_dim).bytes_per_head)
    case = f"1x{tokens}, {heads}/{kv_heads} heads, d {head_dim}, {BFLOAT16}, {form} cache"
    work = prefill_flops(1, tokens, heads, head_dim)
    return Measured(launch, variant, case, "prefill attention", unit=TFLOP_S, work=work, set_bytes=set_bytes, sample=6)
