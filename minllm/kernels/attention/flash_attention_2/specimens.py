"""Specimens of FlashAttention-2: on tensor cores, in float32, over quantised caches; for short and long prompts."""

import dataclasses

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, LONG, NO_LSE, NO_SCALES, SHORT, SM_COUNT, TENSOR_CORES, inputs
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import float32 as flash_attention_2_float32
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.quantization.formats import FP8_SINCE, kv_format
from minllm.kernels.specimen import FLOAT32, INT32, TARGETS, UINT8, Specimen, array


def specimens():
    """All kernels of FlashAttention-2."""
    for dtype in HALF_DTYPES:
        yield from flash_attention_2_specimens(dtype.name)
    yield strided_specimen("bfloat16")
    yield from flash_attention_2_float32_specimens()
    yield from flash_attention_2_quantized_specimens()


def flash_attention_2_specimens(dtype):
    """Tensor-core kernels, with the tiles for short and for long prompts."""
    for head_dim in (40, 64, 96, 128, 256):
        for tiles in sorted({flash_attention_2.tiles_for(head_dim, tokens, 32, 1, SM_COUNT) for tokens in (SHORT, LONG)}):
            kernel, threads, shared_bytes = flash_attention_2.make_kernel(dtype, head_dim, BLOCK_SIZE, *tiles)
            query, key_cache, value_cache = inputs(dtype)
            arguments = (query, key_cache, NO_SCALES, value_cache, NO_SCALES, array(dtype, 3), NO_LSE, *BATCH, FLOAT32, INT32)
            name = f"attention/flash_attention_2/{head_dim}/{tiles[0]}x{tiles[1]}/{dtype}"
            blocks = kernel.options["launch_bounds"][1]
            yield Specimen(name, kernel, arguments, threads, blocks, shared_bytes, TENSOR_CORES)


def strided_specimen(dtype):
    """One kernel over a cache in which the layers of a token are adjacent."""
    like = next(specimen for specimen in flash_attention_2_specimens(dtype) if "/128/" in specimen.name)
    name, (query, *_), cache = like.name.replace("attention/", "attention/strided/", 1), like.arguments, array(dtype, 4, gaps=True)
    arguments = (query, cache, NO_SCALES, cache, NO_SCALES, *like.arguments[5:])
    return dataclasses.replace(like, name=name, arguments=arguments, targets=((9, 0),))


def flash_attention_2_float32_specimens():
    """Float32 kernels, without tensor cores."""
    for head_dim in (40, 64, 128, 256):
        tiles = flash_attention_2_float32.tiles_for(head_dim)
        kernel, threads, shared_bytes, _ = flash_attention_2_float32.make_kernel(head_dim, BLOCK_SIZE, *tiles)
        query, key_cache, value_cache = inputs("float32")
        arguments = (query, key_cache, NO_SCALES, value_cache, NO_SCALES, query, NO_LSE, *BATCH, FLOAT32, INT32)
        name = f"attention/flash_attention_2_float32/{head_dim}/float32"
        yield Specimen(name, kernel, arguments, threads, 1, shared_bytes, ("LDG*128*", "MUFU.EX2"))


def flash_attention_2_quantized_specimens():
    """Kernels over quantised caches, with tiles for long and short prompts; one block of 8 warps, or two of 4, fills an SM's registers."""
    for name, head_dim, dtype, longest in (
        ("int8", 128, "bfloat16", LONG), ("int8", 96, "float16", LONG), ("int4", 128, "bfloat16", LONG), ("int4", 256, "float16", LONG),
        ("int4", 64, "bfloat16", SHORT), ("fp8_e4m3", 128, "bfloat16", LONG), ("fp8_e5m2", 64, "float16", LONG),
    ):  # fmt: skip
        found = kv_format(name, head_dim)
        tiles = flash_attention_2_quantized.tiles_for(found, longest)
        kernel, threads, shared_bytes = flash_attention_2_quantized.make_kernel(dtype, found, BLOCK_SIZE, *tiles)
        codes, rows = array(UINT8, 4), array(dtype, 3)
        scales = array(FLOAT32, 1) if found.is_float else array("float16", 5)
        targets = tuple(target for target in TARGETS if target >= FP8_SINCE) if found.is_float else TARGETS
        targets = targets if dtype == "bfloat16" else (targets[-2],)  # the dtypes differ only in loading queries and storing outputs
        yield Specimen(
            f"attention/flash_attention_2_quantized/{name}/{'x'.join(map(str, tiles))}/{head_dim}/{dtype}",
            kernel,
            (rows, codes, scales, codes, scales, rows, NO_LSE, *BATCH, FLOAT32, INT32),
            threads,
            blocks=1 if threads > 128 else 2,
            shared_bytes=shared_bytes,
            contains=(TENSOR_CORES[0], TENSOR_CORES[1], TENSOR_CORES[2], "LDG*128*", "STS*128*", "MUFU.EX2"),
            targets=targets,
        )
