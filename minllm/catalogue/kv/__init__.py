"""The launches of the kernels that write the KV cache."""

from minllm.catalogue.kv import machine_code
from minllm.catalogue.kv.plain import append, compact_path, copy_blocks, move_window, qkv_rope_append
from minllm.catalogue.kv.quantized import append_quantized, qkv_rope_append_quantized, quantize_groups
from minllm.catalogue.launch import MICROSECONDS, ONE_SET, Measured, each, for_tuning
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.kv.qkv_rope_append_vector import MANY_TOKENS
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

compiled = machine_code.compiled
APPENDED = (
    dict(tokens=3, kv_heads=2, head_dim=40, block_size=4),
    dict(tokens=5, kv_heads=3, head_dim=7, block_size=4),
    dict(tokens=1, kv_heads=9, head_dim=128, skip=False),  # 144 vectors of 8, a block has 128 threads
    dict(tokens=1, kv_heads=1, head_dim=1, block_size=1, skip=False),
    dict(tokens=1, kv_heads=1, head_dim=129, skip=False),
    dict(tokens=4, kv_heads=1, head_dim=8, block_size=1),
    dict(tokens=4, kv_heads=2, head_dim=8, block_size=2, layers=3),
    dict(tokens=3, kv_heads=1, head_dim=7, block_size=2, layers=2),
)
FUSED = (
    dict(tokens=3, kv_heads=2, head_dim=64, rotary_dim=64, norm=True, block_size=4),
    dict(tokens=2, kv_heads=1, head_dim=6, heads=3, rotary_dim=6, interleaved=True, norm=True, block_size=4),
    dict(tokens=1, kv_heads=1, head_dim=2, block_size=1, skip=False, heads=1, rotary_dim=2),
    dict(tokens=4, kv_heads=2, head_dim=64, heads=6, rotary_dim=64),
    dict(tokens=3, kv_heads=2, head_dim=64, heads=2, rotary_dim=64, unaligned=True),
    dict(tokens=2, kv_heads=2, head_dim=64, rotary_dim=64, interleaved=True, norm=True),
    dict(tokens=1, kv_heads=2, head_dim=128, skip=False, heads=2, rotary_dim=128, norm=True),
    dict(tokens=1, kv_heads=3, head_dim=128, skip=False, heads=45, rotary_dim=128, norm=True),  # several blocks a token
    dict(tokens=2, kv_heads=2, head_dim=64, block_size=4, heads=66, rotary_dim=64),  # threads without a head, or without one that rotates
    dict(tokens=4, kv_heads=1, head_dim=80, block_size=8, heads=3, rotary_dim=32, norm=True),
    dict(tokens=1, kv_heads=1, head_dim=40, heads=2, rotary_dim=40, interleaved=True),
    dict(tokens=3, kv_heads=2, head_dim=7, block_size=2, heads=2, rotary_dim=6, norm=True),
    dict(tokens=2, kv_heads=1, head_dim=64, heads=1),
    dict(tokens=4, kv_heads=2, head_dim=16, block_size=2, rotary_dim=16, layers=3),
    dict(tokens=3, kv_heads=2, head_dim=7, block_size=2, heads=2, rotary_dim=6, layers=2),
    dict(tokens=1, kv_heads=1, head_dim=1, heads=1, norm=True),
    dict(tokens=1, kv_heads=1, head_dim=16, heads=3, rotary_dim=16, norm=True, magnitude=1e4),
)
COPIED = (
    dict(copies=2, blocks=4, shape=(16, 2, 40), layers=3),
    dict(copies=2, blocks=4, shape=(3, 7), layers=3),
    dict(copies=1, blocks=3, shape=(1, 1, 1)),
    dict(copies=3, blocks=7, shape=(4, 3, 7)),
    dict(copies=1, blocks=3, shape=(5, 1, 129)),
    dict(copies=2, blocks=5, shape=(16, 5, 64)),  # more vectors than one block of threads copies
    dict(copies=1, blocks=3, shape=(2050, 1)),  # more bytes than one block of threads copies
)
GROUPS = (
    ((69,), (69,), 64, 2, 64),  # two groups, the second in the second half of its block, and 5 tokens that wait for theirs to be whole
    ((1, 1, 1), (31, 32, 33), 64, 1, 32),  # only the second has a whole group
    ((1, 1, 0), (160, 128, 0), 32, 2, 64),
    ((70, 3), (70, 97), 96, 1, 96),  # two groups, and one that began before the chunk
    ((34,), (64,), 128, 2, 32),
    ((2,), (65,), 256, 1, 32),
)
QUANTIZED_SMALL = (  # options of both launches
    dict(tokens=3, kv_heads=2, head_dim=64, name="int8", block_size=4),
    dict(tokens=2, kv_heads=3, head_dim=128, name="int8", smooth=False),
    dict(tokens=3, kv_heads=2, head_dim=96, name="int8", block_size=8),
    dict(tokens=2, kv_heads=1, head_dim=80, name="int8"),
    dict(tokens=8, kv_heads=2, head_dim=96, name="int8", smooth=False),
    dict(tokens=1, kv_heads=1, head_dim=128, name="int8", group_size=16, skip=False),
    dict(tokens=4, kv_heads=1, head_dim=64, name="int4", block_size=1, skip=False),
    dict(tokens=3, kv_heads=2, head_dim=128, name="int4", group_size=64),
    dict(tokens=2, kv_heads=2, head_dim=96, name="int4"),
    dict(tokens=2, kv_heads=1, head_dim=256, name="int4"),
    dict(tokens=4, kv_heads=2, head_dim=64, name="fp8_e4m3"),
    dict(tokens=2, kv_heads=2, head_dim=128, name="fp8_e5m2", smooth=False),
    dict(tokens=1, kv_heads=1, head_dim=256, name="fp8_e4m3", skip=False),
)
OF_STEPS = (  # what the fused step adds to each but the first
    *(dict(norm=True), dict(norm=True), dict(rotary=False), dict(loud_end=True), {}, {}),
    *(dict(norm=True), {}, dict(norm=True), dict(norm=True), {}, dict(rotary=False)),
)
FUSED_QUANTIZED = (
    dict(tokens=4, kv_heads=2, head_dim=64, name="int8"),
    *(sizes | more for sizes, more in zip(QUANTIZED_SMALL[1:], OF_STEPS, strict=True)),
)


def small():
    """Shuffled slots, some of them -1, in caches of which every other number must stay as it is."""
    yield from each(append, APPENDED, dtype=DTYPES)
    yield from each(qkv_rope_append, FUSED, dtype=DTYPES)
    yield from each(copy_blocks, COPIED, dtype=DTYPES)
    yield from each(copy_blocks, COPIED[:4], dtype=(FLOAT16,), outward=[True])
    yield from each(compact_path, [(2, 40, BFLOAT16), (3, 7, BFLOAT16), (3, 8, FLOAT16), (1, 5, FLOAT32)])
    yield from each(move_window, [(3, 64), (1, 32), (7, 128), (129, 64)])
    yield from each(quantize_groups, GROUPS, dtype=(BFLOAT16,))
    yield from each(quantize_groups, GROUPS[4:5], dtype=(FLOAT32, FLOAT16))
    yield qkv_rope_append_quantized(3, 2, 64, "int4", norm=True, block_size=4, skip=False)
    yield from each(qkv_rope_append_quantized, [(3, 1, 32, name) for name in ("int8", "int4", "fp8_e4m3")], smooth=[False])
    yield from each(qkv_rope_append_quantized, FUSED_QUANTIZED)
    yield from each(qkv_rope_append_quantized, FUSED_QUANTIZED[5:6], dtype=(FLOAT32, FLOAT16))
    for number, dtype in ((0, FLOAT32), (1, BFLOAT16), (9, BFLOAT16)):
        yield qkv_rope_append_quantized(**FUSED_QUANTIZED[number], dtype=dtype, recent=True)
    yield from each(append_quantized, QUANTIZED_SMALL)
    yield from each(append_quantized, QUANTIZED_SMALL[:1], dtype=(FLOAT32, FLOAT16))


def large():
    """Heads of models, and more tokens than a grid's second axis may have blocks."""
    yield from each(append, [(2049, 8, 128), (130, 5, 67)], dtype=DTYPES)
    fused = (dict(tokens=MANY_TOKENS, kv_heads=12, head_dim=64, heads=12),  # GPT-2's
             dict(tokens=2049, kv_heads=8, head_dim=64, heads=32, rotary_dim=64),
             dict(tokens=130, kv_heads=8, head_dim=128, heads=64, rotary_dim=128, norm=True),
             dict(tokens=1, kv_heads=1, head_dim=256, heads=4, rotary_dim=256, norm=True),  # Gemma's
             dict(tokens=MANY_TOKENS, kv_heads=1, head_dim=256, heads=4, rotary_dim=256, norm=True),
             dict(tokens=33, kv_heads=2, head_dim=256, heads=7, rotary_dim=64, interleaved=True))  # fmt: skip
    yield from each(qkv_rope_append, fused, dtype=DTYPES)
    yield from each(copy_blocks, [(60, 130, (16, 8, 128)), (1, 3, (4096, 8, 64)), (9, 20, (16, 5, 67))], dtype=DTYPES)
    formats = [("int8", 128), ("int8", 96), ("int4", 64), ("int4", 128), ("fp8_e4m3", 128), ("fp8_e5m2", 256)]
    yield from each(append_quantized, [(1031, 8, head_dim, name) for name, head_dim in formats])
    steps = [(1031, 8, head_dim, name, BFLOAT16, 32, head_dim == 128) for name, head_dim in formats]
    yield from each(qkv_rope_append_quantized, steps, recent=[False, True])
    llama = [(130, 8, 128, name) for name in TOKEN_FORMATS]  # without norms
    yield from each(qkv_rope_append_quantized, llama, dtype=(BFLOAT16, FLOAT16), heads=[32])
    many = [(MANY_TOKENS, 8, 128, name) for name in ("fp8_e4m3", "fp8_e5m2")]  # two heads per thread
    yield from each(qkv_rope_append_quantized, many, dtype=(BFLOAT16, FLOAT16), heads=[32])
    yield from each(qkv_rope_append_quantized, FUSED_QUANTIZED[::4], dtype=(FLOAT32, FLOAT16))
    yield from each(qkv_rope_append_quantized, FUSED_QUANTIZED[::2], recent=[True])
    many = ((1,) * 77, tuple(range(1, 540, 7)), 128, 8, 32), ((1000, 1, 333), (1000, 640, 4001), 128, 8, 64)
    yield from each(quantize_groups, many, dtype=(BFLOAT16,))
    yield from each(quantize_groups, GROUPS[3:4], dtype=(FLOAT32, FLOAT16))


def measured():
    """Arrays larger than any cache, in blocks of 16, relative to the rate of a copy."""
    yield Measured(append(65536, 8, 128, BFLOAT16, skip=False), "append", "65536x8x128, bfloat16")
    yield Measured(copy_blocks(4096, 8192, (16, 8, 128), BFLOAT16), "copy_blocks", "4096x16x8x128, bfloat16", for_tuning=True)
    width, tokens = (32 + 2 * 8) * 128, 10240
    plain = dict(case="10240x(32+2x8)x128, bfloat16", work=2 * tokens * width * 2, set_bytes=2 * tokens * width * 2)
    for variant, norm in (("qkv_rope_append", False), ("qkv_rope_append with norms", True)):
        launch = qkv_rope_append(tokens, 8, 128, BFLOAT16, 32, 128, norm=norm, skip=False, positions=tokens)
        yield Measured(launch, variant, **plain, for_tuning=norm)
    for name in ("int8", "int4", "fp8_e4m3"):
        moved = 2 * 65536 * 8 * (128 * 2 + kv_format(name, 128).bytes_per_head)
        launch = append_quantized(65536, 8, 128, name, skip=False, smooth=False)
        case = f"65536x8x128, {name}, bfloat16"
        yield Measured(launch, "append_quantized", case, work=moved, set_bytes=moved, for_tuning=True)
        moved = tokens * ((width + 32 * 128) * 2 + 2 * 8 * kv_format(name, 128).bytes_per_head)
        launch = qkv_rope_append_quantized(tokens, 8, 128, name, heads=32, skip=False, smooth=False, positions=tokens)
        size = dict(work=moved, set_bytes=moved, tolerance=0.0, for_tuning=name != "int8")
        yield Measured(launch, "qkv_rope_append_quantized", f"10240x(32+2x8)x128, {name}, bfloat16", **size)
    yield from for_tuning(measured_windows())


def measured_windows():
    """Quantising the groups of a long prompt, and advancing the windows of 64 rows."""
    tokens = 2048 * TOKEN_GROUP
    moved = 2 * tokens * 8 * (128 * 2 + kv_format("kivi_int4", 128).bytes_per_head)
    launch = quantize_groups((tokens,), (tokens,), 128, 8, TOKEN_GROUP, BFLOAT16)
    yield Measured(launch, "quantize_groups", f"{tokens}x8x128, kivi_int4, bfloat16", work=moved, set_bytes=moved)
    yield Measured(move_window(64, 128), "move_window", "64 rows, 128 tokens", unit=MICROSECONDS, work=0, set_bytes=ONE_SET)
