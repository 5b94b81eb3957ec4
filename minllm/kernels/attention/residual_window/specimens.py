"""Specimens of attention with a residual window: prompts and decode steps over each part, and the merge."""

import numpy as np

from minllm.kernels.attention.common import merge_states
from minllm.kernels.attention.common.specimen_types import NO_SCALES, SM_COUNT
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.layout import can_fetch
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.specimen import FLOAT32, INT32, UINT8, Specimen, array
from minllm.machine.numba_cuda import types

DTYPE, GROUP, WINDOW, BLOCK_SIZE = "bfloat16", 4, 128, 32
ROWS, CACHE, LSE = array(DTYPE, 3), array(DTYPE, 4), array(FLOAT32, 2)
BATCH = (array(INT32, 1), array(INT32, 1), array(INT32, 2), FLOAT32, INT32)  # query_start, context_lens, block_tables, scale, window
PARTS = (array(FLOAT32, 2), array(FLOAT32, 2), array(FLOAT32, 3), array(INT32, 1))
HOPPER = ((9, 0),)
FORMATS = (("int8", 128), ("int4", 128), ("fp8_e4m3", 128), ("kivi_int4", 64), ("kivi_int4", 96), ("kivi_int4", 128), ("kivi_int4", 256))
LONG = 8192  # tokens of a prompt


def specimens():
    """All kernels of attention with a residual window."""
    for name, head_dim in FORMATS:
        yield from code_specimens(kv_format(name, head_dim))
    for head_dim in (64, 128, 256):
        yield from recent_specimens(head_dim)
        kernel = merge_states.make_kernel(np.dtype(DTYPE), head_dim)
        arguments = (ROWS, LSE, ROWS, LSE, ROWS, array(INT32, 1))
        contains = ("LDG*128*", "STG*128*", "MUFU.EX2")
        yield Specimen(f"attention/merge_states/{head_dim}/{DTYPE}", kernel, arguments, merge_states.BLOCK, 16, contains=contains)


def code_specimens(form):
    """Kernels over codes: the tiles of long prompts, and the shapes for few and for many heads."""
    codes, scales = array(UINT8, 4), array(FLOAT32, 1) if form.is_float else array("float16", 5)
    details = f"{form.name}/{form.head_dim}/{DTYPE}"
    tiles = flash_attention_2_quantized.tiles_for(form, LONG)
    kernel, threads, shared_bytes = flash_attention_2_quantized.make_kernel(DTYPE, form, BLOCK_SIZE, *tiles, WINDOW)
    arguments = (ROWS, codes, scales, codes, scales, ROWS, LSE, *BATCH)
    blocks = 1 if threads > 128 else 2
    yield Specimen(f"attention/residual_window/codes/prompt/{details}", kernel, arguments, threads, blocks, shared_bytes, targets=HOPPER)
    by_tma = can_fetch(form, BLOCK_SIZE)
    arguments = (ROWS, codes, codes, scales, scales, ROWS, LSE, *PARTS, *BATCH, *(types.uint64 if by_tma else types.none,) * 2)
    for line_heads in (8, 1024):
        shape = split_quantized.shape_for(form, GROUP, line_heads, tensor_copies=by_tma)
        kernel, threads, shared_bytes = split_quantized.make_kernel(form, DTYPE, BLOCK_SIZE, GROUP, None, shape, WINDOW)
        name = f"attention/residual_window/codes/step/{shape.blocks}x{shape.warps}x{shape.stages}/{details}"
        yield Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, targets=HOPPER)


def recent_specimens(head_dim):
    """Kernels over recent keys: the tiles of long prompts, and a decode step."""
    tiles = flash_attention_2.tiles_for(head_dim, LONG, 32, 1, SM_COUNT)
    kernel, threads, shared_bytes = flash_attention_2.make_kernel(DTYPE, head_dim, BLOCK_SIZE, *tiles, WINDOW)
    arguments, blocks = (ROWS, CACHE, NO_SCALES, CACHE, NO_SCALES, ROWS, LSE, *BATCH), kernel.options["launch_bounds"][1]
    name = f"attention/residual_window/recent/prompt/{head_dim}/{DTYPE}"
    yield Specimen(name, kernel, arguments, threads, blocks, shared_bytes, targets=HOPPER)
    shape = SplitShape(4, 16, 2 if head_dim == 256 else 4, 1, tensor_copies=True)
    kernel, threads, shared_bytes = split_tensor_core.make_kernel(DTYPE, head_dim, BLOCK_SIZE, GROUP, None, shape)
    numbers = (INT32, FLOAT32, *[types.none] * 3, *[types.uint64] * 2)
    arguments = (ROWS, CACHE, CACHE, ROWS, LSE, *PARTS, *BATCH, *numbers)
    name = f"attention/residual_window/recent/step/{head_dim}/{DTYPE}"
    yield Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, targets=HOPPER)
