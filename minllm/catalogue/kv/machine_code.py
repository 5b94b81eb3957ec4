"""The kernels that write the KV cache as they are compiled."""

from minllm.catalogue.kv.plain import append, compact_path, copy_blocks, move_window, qkv_rope_append
from minllm.catalogue.kv.quantized import append_quantized, qkv_rope_append_quantized, quantize_groups
from minllm.catalogue.launch import FP8_TARGETS, TARGETS, WIDE, MachineCode
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.kv.qkv_rope_append_vector import MANY_TOKENS

# name: (head_dim, rotary_dim, interleaved, with QK norm), of heads that the kernel by elements serves.
HEADS = {
    "64": (64, 64, False, False),  # Llama 3.2
    "64_without_positions": (64, 0, False, False),  # GPT-2
    "256_with_norm": (256, 256, False, True),  # Gemma's size with Qwen3's norm: the most components per lane
    "80_interleaved_with_norm": (80, 40, True, True),
}
# The same for heads with halves of whole vectors.
VECTOR_HEADS = {
    "64": (64, 64, False, False),
    "128_without_positions": (128, 0, False, False),
    "128": (128, 128, False, False),
    "128_with_norm": (128, 128, False, True),
}
# (format, head_dim, dtype) of the kernels that write quantised caches.
QUANTIZED = (
    *(("int8", 128, BFLOAT16), ("int8", 96, FLOAT32), ("int4", 64, BFLOAT16), ("int4", 256, BFLOAT16)),
    *(("fp8_e4m3", 128, BFLOAT16), ("fp8_e5m2", 64, BFLOAT16)),
)


def compiled():
    """They are memory-bound: 12 blocks of 4 warps, three quarters of an SM's warps, or fewer with more loads per thread."""
    for dtype in DTYPES:
        yield MachineCode(f"kv/append/elements/{dtype}", append(1, 1, 7, dtype), blocks=12)
        yield MachineCode(f"kv/append/vectors/{dtype}", append(1, 1, 8, dtype), blocks=12, contains=WIDE)
        for name, head in HEADS.items():
            launch = qkv_rope_append(1, 8, head[0], dtype, 32, *head[1:], unaligned=True)
            yield MachineCode(f"kv/qkv_rope_append/{name}/{dtype}", launch, blocks=12)
        for name, head in VECTOR_HEADS.items():
            for heads_per_thread, tokens in ((1, 1), (2, MANY_TOKENS)):
                launch, blocks = qkv_rope_append(tokens, 8, head[0], dtype, 80, *head[1:]), 4 if head[3] else 5
                yield MachineCode(f"kv/qkv_rope_append/vectors/{name}/{heads_per_thread}/{dtype}", launch, blocks, WIDE)
        if dtype.itemsize == 2:  # the layers of a token lie side by side
            launch = qkv_rope_append(MANY_TOKENS, 8, 128, dtype, 32, 128, layers=2)
            yield MachineCode(f"kv/qkv_rope_append/strided/128/{dtype}", launch, blocks=5, contains=WIDE)
    yield MachineCode("kv/move_window", move_window(1, 64), blocks=12)
    yield MachineCode("kv/copy_blocks/bytes", copy_blocks(1, 2, (3, 7), FLOAT16), blocks=12)
    yield MachineCode("kv/copy_blocks/vectors", copy_blocks(1, 2, (16, 8), FLOAT16), blocks=12, contains=WIDE)
    yield MachineCode("kv/compact_path/elements", compact_path(1, 5, FLOAT32), blocks=6)
    yield MachineCode("kv/compact_path/vectors", compact_path(1, 8, FLOAT32), blocks=6, contains=WIDE)
    for name, head_dim, dtype in QUANTIZED:
        end, norm, wide = f"quantized/{name}/{head_dim}/{dtype}", head_dim == 128, WIDE[:1]
        targets = FP8_TARGETS if name.startswith("fp8") else TARGETS
        yield MachineCode(f"kv/append/{end}", append_quantized(1, 8, head_dim, name, dtype), 12, wide, targets=targets)
        by_vectors = name.startswith("fp8")
        step = qkv_rope_append_quantized(1, 8, head_dim, name, dtype, 32, norm)
        yield MachineCode(f"kv/qkv_rope_append/{end}", step, 4 if by_vectors else 8, wide, targets=targets)
        if by_vectors:
            step = qkv_rope_append_quantized(MANY_TOKENS, 8, head_dim, name, dtype, 32, norm)
            yield MachineCode(f"kv/qkv_rope_append/many/{end}", step, 4, wide, targets=targets)
        if name in ("int8", "fp8_e4m3") and norm:
            step = qkv_rope_append_quantized(1, 8, head_dim, name, dtype, 32, norm, recent=True)
            yield MachineCode(f"kv/qkv_rope_append/recent/{end}", step, 8, wide, targets=targets)
    for head_dim, dtype in ((64, BFLOAT16), (128, BFLOAT16), (256, FLOAT16), (96, FLOAT32)):
        launch = quantize_groups((1,), (32,), head_dim, 8, 32, dtype)
        yield MachineCode(f"kv/quantize_groups/{head_dim}/{dtype}", launch, blocks=4, contains=("LD*128*",))
