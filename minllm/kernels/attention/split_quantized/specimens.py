"""Specimens of split_quantized: every format, by cp.async and by TMA."""

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, NO_LSE, SPLIT_TARGETS, TENSOR_CORES
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.split_quantized import shape_for
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.quantization.formats import FP8_SINCE, kv_format
from minllm.kernels.specimen import FLOAT32, INT32, UINT8, Specimen, array
from minllm.machine.numba_cuda import types
from minllm.machine.occupancy import MULTIPROCESSORS


def specimens():
    """All kernels of split_quantized."""
    for dtype in HALF_DTYPES:
        yield from split_quantized_specimens(dtype.name)


def split_quantized_specimens(dtype):
    """Kernels for every format, for one group and several, and for even and odd numbers of chunks per row."""
    layouts = [("int8", 128, None, 4), ("int4", 128, None, 4), ("int4", 128, 64, 4), ("fp8_e4m3", 128, None, 4), ("fp8_e5m2", 128, None, 4)]
    layouts += [("int8", 80, None, 1), ("int4", 96, None, 16), ("int8", 256, None, 8), ("int4", 256, None, 8), ("int8", 64, 32, 16)]
    for name, head_dim, group_size, group in layouts if dtype == "bfloat16" else layouts[:1]:
        form = kv_format(name, head_dim, group_size)
        for capability, targets, line_heads in SPLIT_TARGETS:
            if name == "fp8_e4m3":
                targets = tuple(target for target in targets if target >= FP8_SINCE)
            shape = shape_for(form, group, line_heads, MULTIPROCESSORS[capability].block_shared_bytes)
            yield split_quantized_specimen(form, dtype, group, shape, targets)
    fetched = [("int8", 128, 4, 1024), ("int4", 128, 4, 8), ("int4", 128, 4, 1024), ("fp8_e4m3", 128, 8, 1024), ("int4", 256, 1, 1024)]
    for name, head_dim, group, line_heads in fetched if dtype == "bfloat16" else fetched[:1]:
        form = kv_format(name, head_dim)
        shape = shape_for(form, group, line_heads, MULTIPROCESSORS[9, 0].block_shared_bytes, tensor_copies=True)
        yield split_quantized_specimen(form, dtype, group, shape, ((9, 0), (10, 0)))


def split_quantized_specimen(form, dtype, group, shape, targets):
    """The kernel for one format and one SplitShape, with rings filled by cp.async or by TMA."""
    parts = (array(FLOAT32, 2), array(FLOAT32, 2), array(FLOAT32, 3), array(INT32, 1))
    codes, scales = array(UINT8, 4), array(FLOAT32, 1) if form.is_float else array("float16", 5)
    maps = (types.uint64 if shape.tensor_copies else types.none,) * 2
    arguments = (array(dtype, 3), codes, codes, scales, scales, array(dtype, 3), NO_LSE, *parts, *BATCH, FLOAT32, INT32, *maps)
    kernel, threads, shared_bytes = split_quantized.make_kernel(form, dtype, BLOCK_SIZE, group, None, shape)
    details = f"{form.name}/{form.head_dim}_by_{form.group_size}/group_{group}/{shape.blocks}x{shape.warps}x{shape.stages}"
    copies = "UTMALDG.2D*" if shape.tensor_copies else "LDGSTS*128*"
    contains = (*TENSOR_CORES[:3], copies, "MUFU.EX2", "MOVM.16.MT88") + (() if form.is_float else ("IMMA.16832.U8.S8",))
    name = f"attention/split_quantized/{'engine/' * shape.tensor_copies}{details}/{dtype}"
    return Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, contains, targets=targets)
