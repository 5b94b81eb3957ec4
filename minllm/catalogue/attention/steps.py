"""The launches of decode steps on tensor cores: split_tensor_core and what is made of its parts, and split_quantized."""

from minllm.catalogue.attention.paged import TENSOR_CORES, attention
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.attention.splits import KV_HEADS, step
from minllm.catalogue.launch import HOPPER, MachineCode
from minllm.catalogue.rows import BFLOAT16, FLOAT16
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.kernels.attention.split_tensor_core.shape import shape_for
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.quantization.formats import FP8_SINCE, kv_format
from minllm.machine.occupancy import MULTIPROCESSORS

# (compute capability whose shared memory determines the shape of blocks, targets, KV heads of the batch).
KINDS = (((8, 9), ((8, 0), (8, 9)), 8), ((9, 0), ((9, 0), (10, 0)), 8), ((9, 0), HOPPER, 1024))
BY_TMA = ((9, 0), (10, 0))
CONTEXT = 128  # keys of the launches that are compiled
TRANSPOSED = "MOVM.16.MT88"
# (format, head_dim, group size, query heads per KV head), for even and odd numbers of chunks per row.
QUANTIZED = (
    *(("int8", 128, None, 4), ("int4", 128, None, 4), ("int4", 128, 64, 4), ("fp8_e4m3", 128, None, 4), ("fp8_e5m2", 128, None, 4)),
    *(("int8", 80, None, 1), ("int4", 96, None, 16), ("int8", 256, None, 8), ("int4", 256, None, 8), ("int8", 64, 32, 16)),
)
# (format, head_dim, query heads per KV head, KV heads of the batch).
QUANTIZED_BY_TMA = (
    *(("int8", 128, 4, 1024), ("int4", 128, 4, 8), ("int4", 128, 4, 1024), ("fp8_e4m3", 128, 4, 1024), ("fp8_e4m3", 128, 8, 1024)),
    ("int4", 256, 1, 1024),
)


def bytes_of(capability):
    """The largest shared memory of a block."""
    return MULTIPROCESSORS[capability].block_shared_bytes


def named(shape):
    """The words of a name for a SplitShape."""
    return f"{shape.blocks}x{shape.warps}x{shape.stages}"


def compiled():
    """Steps on all kinds of GPUs, for few heads and for many."""
    for dtype in HALF_DTYPES:
        yield from compiled_cp_async(dtype)
        yield from compiled_by_tma(dtype)
        yield from compiled_clusters(dtype)
    shape = shape_for(128, 4, 1024, bytes_of(HOPPER[0]))
    yield step_code("strided/split_tensor_core", 128, 4, BFLOAT16, shape, HOPPER, layers=2)
    for dtype in HALF_DTYPES:
        yield from compiled_quantized(dtype)


def step_code(name, head_dim, group, dtype, shape, targets, words="", **options):
    """A step with this SplitShape."""
    launch = step("split_tensor_core", CONTEXT, group * KV_HEADS, KV_HEADS, head_dim, dtype, shape=shape, **options)
    contains = ("UTMALDG.5D*", *TENSOR_CORES[:3], TRANSPOSED) if shape.tensor_copies else (*TENSOR_CORES, TRANSPOSED)
    code = f"attention/{name}/{head_dim}/group_{group}/{words}{named(shape)}/{dtype}"
    return MachineCode(code, launch, shape.blocks, contains, targets=targets)


def compiled_cp_async(dtype):
    """Rings filled by cp.async: fair shares and fixed splits, groups that fill one tile of 8 heads or two; then the unified maximum."""
    for head_dim, group, splits in ((40, 1, None), (64, 4, None), (128, 4, None), (128, 4, 8), (96, 16, None), (256, 8, None)):
        for capability, targets, line_heads in KINDS:
            shape = shape_for(head_dim, group, line_heads, bytes_of(capability))
            fixed = dict(words="fixed/", splits=splits) if splits else {}
            yield step_code("split_tensor_core", head_dim, group, dtype, shape, targets, **fixed)
    shape = shape_for(128, 4, 8, bytes_of(HOPPER[0]))
    launch = step("split_unified_maximum", CONTEXT, 4 * KV_HEADS, KV_HEADS, 128, dtype, shape=shape)
    yield MachineCode(f"attention/split_unified_maximum/128/group_4/{dtype}", launch, shape.blocks, TENSOR_CORES, targets=HOPPER)


def compiled_by_tma(dtype):
    """Rings filled by TMA."""
    for head_dim, line_heads in ((64, 8), (64, 512), (128, 8), (128, 512), (256, 8)):
        shape = shape_for(head_dim, 4, line_heads, bytes_of(HOPPER[0]), tensor_copies=True)
        yield step_code("split_tensor_core/engine", head_dim, 4, dtype, shape, BY_TMA)


def compiled_clusters(dtype):
    """A cluster of 8 blocks per KV head."""
    for head_dim, keys, by_tma in ((64, 32, True), (128, 16, True), (128, 16, False)):
        shape = SplitShape(4, keys, 4, 1, by_tma)
        launch = step("split_cluster", CONTEXT, 4 * KV_HEADS, KV_HEADS, head_dim, dtype, shape=shape)
        name = f"attention/split_cluster/{head_dim}/group_4/{'engine/' * by_tma}{dtype}"
        yield MachineCode(name, launch, 1, (*TENSOR_CORES[:3], TRANSPOSED, "UCGABAR_ARV"), targets=HOPPER)


def compiled_quantized(dtype):
    """split_quantized for every format, by cp.async and by TMA."""
    for name, head_dim, group_size, group in QUANTIZED if dtype == BFLOAT16 else QUANTIZED[:1]:
        found = kv_format(name, head_dim, group_size)
        for capability, targets, line_heads in KINDS:
            able = tuple(target for target in targets if name != "fp8_e4m3" or target >= FP8_SINCE)
            shape = split_quantized.shape_for(found, group, line_heads, bytes_of(capability))
            yield quantized_code(found, dtype, group, shape, able)
    for name, head_dim, group, line_heads in QUANTIZED_BY_TMA if dtype == BFLOAT16 else QUANTIZED_BY_TMA[:1]:
        found = kv_format(name, head_dim)
        shape = split_quantized.shape_for(found, group, line_heads, bytes_of(HOPPER[0]), tensor_copies=True)
        yield quantized_code(found, dtype, group, shape, BY_TMA)


def quantized_code(found, dtype, group, shape, targets):
    """A step over codes of a format with this SplitShape."""
    sizes, size = (found.name, group * KV_HEADS, KV_HEADS, found.head_dim, dtype), found.group_size
    launch = quantized_attention("split_quantized", 1, CONTEXT, *sizes, group_size=size, shape=shape)
    copies, integers = "UTMALDG.2D*" if shape.tensor_copies else "LDGSTS*128*", () if found.is_float else ("IMMA.16832.U8.S8",)
    details = f"{'engine/' * shape.tensor_copies}{found.name}/{found.head_dim}_by_{size}/group_{group}/{named(shape)}"
    contains = (*TENSOR_CORES[:3], copies, "MUFU.EX2", TRANSPOSED, *integers)
    return MachineCode(f"attention/split_quantized/{details}/{dtype}", launch, shape.blocks, contains, targets=targets)


def small():
    """Steps of which formulas count the bytes, then sequences of different lengths, windows, and layers side by side."""
    yield step("split_tensor_core", 256, 4, 2, 64, splits=2)
    yield step("split_cluster", 256, 4, 2, 64)
    yield quantized_attention("split_quantized", 1, 256, "int4", splits=2, shape=SplitShape(4, 16, 2, 1, turns=2))
    by_channel = dict(block_size=32, residual_window=32, shape=SplitShape(4, 32, 2, 1, turns=2))
    yield quantized_attention("split_quantized", 1, 300, "kivi_int4", splits=2, **by_channel)
    short, blocks = SplitShape(1, 16, 2, 1), dict(heads=4, kv_heads=2, head_dim=16)
    yield attention("split_tensor_core", (1, 0, 1), (19, 4, 0), **blocks, dtype=FLOAT16, layers=3, shape=short)
    yield attention("split_unified_maximum", (1, 1), (40, 3), **blocks, sliding_window=7, shape=short)
