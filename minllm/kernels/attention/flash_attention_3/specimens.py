"""Specimens of FlashAttention-3: tiles for prompts of all lengths, from pages and from contexts in one block."""

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, LONG, SHORT
from minllm.kernels.attention.flash_attention_3 import flash_attention_3
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.machine.numba_cuda import types


def specimens():
    """All kernels of FlashAttention-3."""
    for dtype in HALF_DTYPES:
        yield from flash_attention_3_specimens(dtype.name)


def flash_attention_3_specimens(dtype):
    """Kernels with the tiles for prompts of all lengths, gathered from pages or copied as one box."""
    paged, whole = BLOCK_SIZE, flash_attention_3.WHOLE_CONTEXT
    layouts = [(64, LONG, paged), (64, SHORT, paged), (80, LONG, paged), (128, LONG, paged), (128, LONG, whole), (128, 1, paged)]
    layouts += [(256, LONG, paged), (256, 1, whole)]
    for head_dim, tokens, block_size in layouts if dtype == "bfloat16" else layouts[3:4]:
        shape = flash_attention_3.shape_for(head_dim, tokens)
        kernel, threads = flash_attention_3.make_kernel(dtype, shape, block_size, BLOCK_SIZE if block_size == paged else shape.key_tile)
        arguments = (*(types.uint64,) * 3, array(dtype, 3), *BATCH, INT32, INT32, FLOAT32, INT32)
        layout = "paged" if block_size == paged else "whole"
        name = f"attention/flash_attention_3/{head_dim}/{shape.query_tile}x{shape.key_tile}/{layout}/{dtype}"
        contains = ("HGMMA*", "UTMALDG.4D*", "MUFU.EX2")
        yield Specimen(name, kernel, arguments, threads, 1, shape.shared_bytes, contains, targets=((9, 0),))
