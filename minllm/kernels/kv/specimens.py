"""The kernels that write the KV cache, as they are launched."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.kv.append import BLOCK, append_kernel, append_vector_kernel
from minllm.kernels.kv.append_quantized import append_quantized_kernel
from minllm.kernels.kv.compact_path import THREADS as COMPACT_THREADS
from minllm.kernels.kv.compact_path import compact_path_kernel, compact_path_vector_kernel
from minllm.kernels.kv.copy_blocks import THREADS as COPY_THREADS
from minllm.kernels.kv.copy_blocks import copy_blocks_kernel, copy_blocks_vector_kernel
from minllm.kernels.kv.move_window import THREADS as MOVE_THREADS
from minllm.kernels.kv.move_window import move_window_kernel
from minllm.kernels.kv.qkv_rope_append import HEADS_PER_BLOCK, qkv_rope_append_kernel
from minllm.kernels.kv.qkv_rope_append_quantized import THREADS as QUANTIZED_THREADS
from minllm.kernels.kv.qkv_rope_append_quantized import qkv_rope_append_quantized_kernel
from minllm.kernels.kv.qkv_rope_append_vector import HEADS_PER_THREAD, THREADS, qkv_rope_append_vector_kernel
from minllm.kernels.kv.quantize_groups import THREADS as GROUP_THREADS
from minllm.kernels.kv.quantize_groups import quantize_groups_kernel
from minllm.kernels.quantization.formats import FP8_SINCE, kv_format
from minllm.kernels.specimen import FLOAT32, INT32, TARGETS, UINT8, UINT32, Specimen, array
from minllm.tiles.warp import WARP

# name: (head_dim, rotary_dim, interleaved, with QK norm)
HEADS = {
    "64": (64, 64, False, False),  # Llama 3.2
    "64_without_positions": (64, 0, False, False),  # GPT-2
    "256_with_norm": (256, 256, False, True),  # Gemma's size with Qwen3's norm: the most components per lane
    "80_interleaved_with_norm": (80, 40, True, True),
}
# The same for heads with halves of whole vectors: (head_dim, with positions, with QK norm).
VECTOR_HEADS = {
    "64": (64, True, False),
    "128_without_positions": (128, False, False),
    "128": (128, True, False),
    "128_with_norm": (128, True, True),
}
# (format, head_dim, dtype) of the kernels that write quantised caches.
BFLOAT16 = FLOAT_DTYPES[-1]
QUANTIZED = (
    ("int8", 128, BFLOAT16),
    ("int8", 96, FLOAT_DTYPES[0]),
    ("int4", 64, BFLOAT16),
    ("int4", 256, BFLOAT16),
    ("fp8_e4m3", 128, BFLOAT16),
    ("fp8_e5m2", 64, BFLOAT16),
)


def specimens():
    """All kernels that write the cache.

    They are memory-bound: 12 blocks of 4 warps, three quarters of an SM's warps, or fewer with more loads per thread.
    """
    for dtype in FLOAT_DTYPES:
        line, matrix, heads, indices = array(dtype.name, 1), array(dtype.name, 2), array(dtype.name, 3), array(INT32, 1)
        rows = (matrix, matrix, matrix, matrix, indices)
        yield Specimen(f"kv/append/elements/{dtype}", append_kernel, rows, BLOCK, blocks=12)
        arguments = (*rows, INT32)
        yield Specimen(f"kv/append/vectors/{dtype}", append_vector_kernel, arguments, BLOCK, blocks=12, contains=("LDG*128*", "STG*128*"))
        for name, head in HEADS.items():
            angles = array(FLOAT32, 2) if head[1] else matrix
            norms = (line, line) if head[3] else (matrix, matrix)
            arguments = (matrix, indices, indices, angles, *norms, heads, heads, heads, FLOAT32)
            kernel = qkv_rope_append_kernel(*head)
            yield Specimen(f"kv/qkv_rope_append/{name}/{dtype}", kernel, arguments, WARP * HEADS_PER_BLOCK, blocks=12)
        for name, head in VECTOR_HEADS.items():
            angles = array(FLOAT32, 2) if head[1] else matrix
            norms = (line, line) if head[2] else (matrix, matrix)
            arguments = (matrix, indices, indices, angles, *norms, heads, heads, heads, FLOAT32)
            wide = ("LDG*128*", "STG*128*")
            for heads_per_thread in (1, HEADS_PER_THREAD):
                kernel = qkv_rope_append_vector_kernel(dtype, *head, heads_per_thread)
                full_name = f"kv/qkv_rope_append/vectors/{name}/{heads_per_thread}/{dtype}"
                yield Specimen(full_name, kernel, arguments, THREADS, blocks=4 if head[2] else 5, contains=wide)
            if name == "128" and dtype.itemsize == 2:  # the layers of a token lie side by side
                caches = (array(dtype.name, 3, gaps=True),) * 2
                arguments = (*arguments[:-3], *caches, FLOAT32)
                yield Specimen(f"kv/qkv_rope_append/strided/{name}/{dtype}", kernel, arguments, THREADS, blocks=5, contains=wide)
    line, table = array(INT32, 1), array(INT32, 2)
    yield Specimen("kv/move_window", move_window_kernel, (line, line, line, line, line, table, INT32), MOVE_THREADS, blocks=12)
    pairs, raw, words, wide = array(INT32, 2), array(UINT8, 3), array(UINT32, 3), ("LDG*128*", "STG*128*")
    yield Specimen("kv/copy_blocks/bytes", copy_blocks_kernel, (raw, raw, pairs), COPY_THREADS, blocks=12)
    yield Specimen("kv/copy_blocks/vectors", copy_blocks_vector_kernel, (words, words, pairs), COPY_THREADS, blocks=12, contains=wide)
    arguments = (line, line, line)
    yield Specimen("kv/compact_path/elements", compact_path_kernel, (words, *arguments), COMPACT_THREADS, blocks=6)
    yield Specimen("kv/compact_path/vectors", compact_path_vector_kernel, (words, *arguments), COMPACT_THREADS, blocks=6, contains=wide)
    yield from quantized_specimens()


def quantized_specimens():
    """Kernels for quantised caches with smoothed keys; the fused step has positions, and norms for heads of 128."""
    for name, head_dim, dtype in QUANTIZED:
        found, has_norm = kv_format(name, head_dim), head_dim == 128
        line, matrix, heads, indices = array(dtype.name, 1), array(dtype.name, 2), array(dtype.name, 3), array(INT32, 1)
        codes, smoothing, angles = array(UINT8, 4), array(FLOAT32, 3), array(FLOAT32, 2)
        scales = array(FLOAT32, 1) if found.is_float else array("float16", 5)
        targets = tuple(target for target in TARGETS if target >= FP8_SINCE) if found.is_float else TARGETS
        end, common = f"quantized/{name}/{head_dim}/{dtype}", dict(threads=QUANTIZED_THREADS, contains=("LDG*128*",), targets=targets)
        arguments = (heads, heads, codes, scales, smoothing, codes, scales, indices)
        yield Specimen(f"kv/append/{end}", append_quantized_kernel(dtype, found, 16, True), arguments, blocks=12, **common)
        norms = (line, line) if has_norm else (matrix, matrix)
        step = (matrix, indices, indices, angles, *norms, heads, codes, scales, smoothing, codes, scales)
        kernel, arguments = (
            qkv_rope_append_quantized_kernel(dtype, found, 16, True, has_norm, True),
            (*step, heads, heads, indices, FLOAT32),
        )
        yield Specimen(f"kv/qkv_rope_append/{end}", kernel, arguments, blocks=8, **common)
        if name in ("int8", "fp8_e4m3") and head_dim == 128:
            kernel = qkv_rope_append_quantized_kernel(dtype, found, 16, True, has_norm, True, keeps_recent=True)
            yield Specimen(f"kv/qkv_rope_append/recent/{end}", kernel, arguments, blocks=8, **common)
    for head_dim, dtype in ((64, BFLOAT16), (128, BFLOAT16), (256, FLOAT_DTYPES[1]), (96, FLOAT_DTYPES[0])):
        recent, codes, scales, indices, tables = (
            array(dtype.name, 4),
            array(UINT8, 4),
            array("float16", 5),
            array(INT32, 1),
            array(INT32, 2),
        )
        arguments = (recent, recent, codes, scales, codes, scales, indices, indices, tables, indices, tables)
        kernel = quantize_groups_kernel(dtype, kv_format("kivi_int4", head_dim), 32)
        yield Specimen(f"kv/quantize_groups/{head_dim}/{dtype}", kernel, arguments, threads=GROUP_THREADS, blocks=4, contains=("LD*128*",))
