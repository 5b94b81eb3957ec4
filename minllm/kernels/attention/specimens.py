"""The attention kernels as they are launched: every variant, with the tiles chosen for common and for awkward head sizes."""

import dataclasses

from numba.cuda import types

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.attention.first_rungs import flash_attention_1, materialized, materialized_projection
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import float32 as flash_attention_2_float32
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.flash_attention_3 import flash_attention_3
from minllm.kernels.attention.residual_window.specimens import window_specimens
from minllm.kernels.attention.split_kv import merge as split_merge
from minllm.kernels.attention.split_kv import split_kv
from minllm.kernels.attention.split_kv.choice import BLOCKS_PER_SM
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.code_shape import shape_for as code_shape_for
from minllm.kernels.attention.split_tensor_core import cascade as split_cascade
from minllm.kernels.attention.split_tensor_core import cluster as split_cluster
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.shape import SplitShape, shape_for
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.quantization.formats import FP8_SINCE, kv_format
from minllm.kernels.specimen import FLOAT32, INT32, TARGETS, UINT8, Specimen, array
from minllm.machine.occupancy import MULTIPROCESSORS

BLOCK_SIZE = 16
NO_LSE = types.none  # for kernels that do not output the log-sum-exp of their rows
BATCH = (array(INT32, 1), array(INT32, 1), array(INT32, 2))  # query_start, context_lens, block_tables
# Shapes of split_tensor_core for GPUs with little shared memory, and with much for few and for many heads.
SPLIT_TARGETS = (((8, 9), ((8, 0), (8, 9)), 8), ((9, 0), ((9, 0), (10, 0)), 8), ((9, 0), ((9, 0),), 1024))
# Every group of an int4 head has its own sums; eight groups, or three for 16 heads, exceed the registers.
GROUP_SPILLS = {(256, 8): {(8, 0): 84, (8, 9): 100, (9, 0): 76}, (96, 3): {(9, 0): 12}}
SHORT, LONG = 100, 8192  # prompts that make few tiles, and many
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS*128*", "MUFU.EX2")


def inputs(dtype):
    """The types of query, key_cache and value_cache."""
    return array(dtype, 3), array(dtype, 4), array(dtype, 4)


def states(rank):
    """The types of a state's maximum, sum and output in memory; maximum and sum have rank `rank`."""
    return array(FLOAT32, rank), array(FLOAT32, rank), array(FLOAT32, rank + 1)


def specimens():
    """All attention kernels."""
    for dtype in FLOAT_DTYPES:
        yield from materialized_specimens(dtype.name)
        yield from flash_attention_1_specimens(dtype.name)
    for dtype in HALF_DTYPES:
        yield from flash_attention_2_specimens(dtype.name)
        yield from flash_attention_3_specimens(dtype.name)
    yield from strided_specimens()
    yield from flash_attention_2_float32_specimens()
    yield from flash_attention_2_quantized_specimens()
    for dtype in FLOAT_DTYPES:
        yield from split_kv_specimens(dtype.name)
    for dtype in HALF_DTYPES:
        yield from split_tensor_core_specimens(dtype.name)
        yield from split_quantized_specimens(dtype.name)
    yield from window_specimens()


def materialized_specimens(dtype):
    """The first rung, and the lesson's decoder: simple kernels of 128 threads; 8 blocks give half of an SM's warps."""
    vector, table, scores = array(INT32, 1), array(INT32, 2), array(FLOAT32, 3)
    rows, cache, weight = array(dtype, 3), array(dtype, 4), array(dtype, 2)
    kernels = {
        "transpose": (materialized.make_transpose_kernel(BLOCK_SIZE), (cache, table, vector, cache)),
        "scores": (materialized.scores_kernel, (rows, cache, scores, vector, vector, INT32)),
        "softmax": (materialized.softmax_kernel, (scores, vector, vector, FLOAT32, INT32)),
        "weighted_values": (materialized.make_weighted_values_kernel(BLOCK_SIZE), (scores, cache, rows, vector, vector, table, INT32)),
        "fill": (materialized_projection.fill_new_key_value_kernel, (rows, vector, vector, weight, weight, cache, cache)),
        "project": (materialized_projection.project_latest_kernel, (rows, vector, weight, weight, weight, rows, cache, cache)),
    }
    for name, (kernel, arguments) in kernels.items():
        if name != "softmax" or dtype == "float32":  # scores are always float32
            yield Specimen(f"attention/materialized/{name}/{dtype}", kernel, arguments, materialized.THREADS, blocks=8)


def flash_attention_1_specimens(dtype):
    """One query row per warp, the state in memory."""
    for head_dim in (64, 128, 256):
        kernel, threads, shared_bytes = flash_attention_1.make_kernel(head_dim, BLOCK_SIZE)
        arguments = (*inputs(dtype), *states(2), array(dtype, 3), *BATCH, FLOAT32, INT32)
        yield Specimen(f"attention/flash_attention_1/{head_dim}/{dtype}", kernel, arguments, threads, 1, shared_bytes)


def flash_attention_2_specimens(dtype):
    """Prompts on tensor cores: the tiles for short prompts and for long ones."""
    for head_dim in (40, 64, 96, 128, 256):
        for tiles in sorted({flash_attention_2.tiles_for(head_dim, tokens, 32, 1) for tokens in (SHORT, LONG)}):
            kernel, threads, shared_bytes = flash_attention_2.make_kernel(dtype, head_dim, BLOCK_SIZE, *tiles)
            arguments = (*inputs(dtype), array(dtype, 3), NO_LSE, *BATCH, FLOAT32, INT32)
            name = f"attention/flash_attention_2/{head_dim}/{tiles[0]}x{tiles[1]}/{dtype}"
            blocks = kernel.options["launch_bounds"][1]
            yield Specimen(name, kernel, arguments, threads, blocks, shared_bytes, TENSOR_CORES)


def strided_specimens():
    """Caches in which the layers of a token lie side by side: a prompt and a decode step."""
    dtype, caches, hopper = "bfloat16", (array("bfloat16", 4, gaps=True),) * 2, ((9, 0),)
    prompt = next(s for s in flash_attention_2_specimens(dtype) if "/128/" in s.name)
    step = next(s for s in split_tensor_core_specimens(dtype) if "/128/" in s.name and s.targets == hopper)
    for like in (prompt, step):
        name, (query, _, _, *others) = like.name.replace("attention/", "attention/strided/", 1), like.arguments
        yield dataclasses.replace(like, name=name, arguments=(query, *caches, *others), targets=hopper)


def flash_attention_2_float32_specimens():
    """Prompts in float32, without tensor cores."""
    for head_dim in (40, 64, 128, 256):
        tiles = flash_attention_2_float32.tiles_for(head_dim)
        kernel, threads, _, shared_bytes = flash_attention_2_float32.make_kernel(head_dim, BLOCK_SIZE, *tiles)
        arguments = (*inputs("float32"), array("float32", 3), *BATCH, FLOAT32, INT32)
        name = f"attention/flash_attention_2_float32/{head_dim}/float32"
        yield Specimen(name, kernel, arguments, threads, 1, shared_bytes, ("LDG*128*", "MUFU.EX2"))


def flash_attention_3_specimens(dtype):
    """Prompts on Hopper: the tiles for prompts of all lengths; keys gathered from pages, or copied as one contiguous run."""
    paged, whole = BLOCK_SIZE, flash_attention_3.WHOLE_CONTEXT
    layouts = [(64, LONG, paged), (64, SHORT, paged), (80, LONG, paged), (128, LONG, paged), (128, LONG, whole), (128, 1, paged)]
    layouts += [(256, LONG, paged), (256, 1, whole)]
    for head_dim, tokens, block_size in layouts if dtype == "bfloat16" else layouts[3:4]:
        shape = flash_attention_3.shape_for(head_dim, tokens)
        kernel, threads = flash_attention_3.make_kernel(dtype, shape, block_size, BLOCK_SIZE if block_size == paged else shape.key_tile)
        arguments = (*(types.uint64,) * 3, array(dtype, 3), *BATCH, *(INT32,) * 3, FLOAT32, INT32)
        layout = "paged" if block_size == paged else "whole"
        name = f"attention/flash_attention_3/{head_dim}/{shape.query_tile}x{shape.key_tile}/{layout}/{dtype}"
        contains = ("HGMMA*", "UTMALDG.4D*", "MUFU.EX2")
        yield Specimen(name, kernel, arguments, threads, 1, shape.shared_bytes, contains, targets=((9, 0),))


def split_kv_specimens(dtype):
    """Decoding: the blocks per SM for which splits are chosen, and the merge of the splits."""
    for head_dim, group in ((40, 1), (64, 1), (64, 4), (128, 4), (128, 8), (256, 8)):
        kernel, threads, _, _ = split_kv.make_split_kernel(dtype, head_dim, BLOCK_SIZE, group)
        # A lane holds its elements of every query head of a group: the largest groups leave room for only two blocks.
        blocks = 2 if head_dim * group >= 1024 else BLOCKS_PER_SM
        arguments = (*inputs(dtype), *states(3), *BATCH, FLOAT32, INT32)
        name = f"attention/split_kv/{head_dim}/group_{group}/{dtype}"
        yield Specimen(name, kernel, arguments, threads, blocks, 0, ("LDG*128*", "MUFU.EX2"))
    for head_dim in (64, 128, 256):
        kernel, threads = split_merge.make_merge_kernel(head_dim)
        arguments = (*states(3), array(dtype, 3), array(INT32, 1), array(INT32, 1), INT32, INT32)
        yield Specimen(f"attention/split_merge/{head_dim}/{dtype}", kernel, arguments, threads, blocks=6)


def split_tensor_core_specimens(dtype):
    """Decoding on tensor cores: equal shares and fixed splits, groups that fill one tile of 8 heads or two."""
    parts = (array(FLOAT32, 2), array(FLOAT32, 2), array(FLOAT32, 3), array(INT32, 1))
    arguments = (*inputs(dtype), array(dtype, 3), NO_LSE, *parts, *BATCH, FLOAT32, INT32, INT32, FLOAT32, *[types.none] * 5)
    for head_dim, group, splits in ((40, 1, None), (64, 4, None), (128, 4, None), (128, 4, 8), (96, 16, None), (256, 8, None)):
        for capability, targets, line_heads in SPLIT_TARGETS:
            shape = shape_for(head_dim, group, line_heads, MULTIPROCESSORS[capability].block_shared_bytes)
            kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, head_dim, BLOCK_SIZE, group, splits, shape)
            details = f"{head_dim}/group_{group}{'/fixed' if splits else ''}/{shape.blocks}x{shape.warps}x{shape.stages}"
            name = f"attention/split_tensor_core/{details}/{dtype}"
            contains = (*TENSOR_CORES, "MOVM.16.MT88")
            yield Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, contains, targets=targets)
    shape = shape_for(128, 4, 8, MULTIPROCESSORS[9, 0].block_shared_bytes)
    kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, 128, BLOCK_SIZE, 4, None, shape, unified=True)
    name, hopper = f"attention/split_unified_maximum/128/group_4/{dtype}", ((9, 0),)
    yield Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, TENSOR_CORES, targets=hopper)
    shape, maps = dataclasses.replace(shape, tensor_copies=True), (types.uint64,) * 2
    seeded, threads, shared_bytes = split_tensor_core.make_kernel(dtype, 128, BLOCK_SIZE, 4, None, shape, seeded=True)
    states = (array(FLOAT32, 3), array(FLOAT32, 3), array(FLOAT32, 4))
    name = f"attention/split_cascade/suffix/128/group_4/{dtype}"
    yield Specimen(name, seeded, (*arguments[:-5], *states, *maps), threads, shape.blocks, shared_bytes, TENSOR_CORES[:3], targets=hopper)
    for head_dim, blocks, stages in ((64, 1, 4), (128, 1, 4), (128, 2, 3), (256, 1, 2)):
        shape = SplitShape(4, 16, stages, blocks, tensor_copies=True)
        kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, head_dim, BLOCK_SIZE, 4, None, shape)
        name = f"attention/split_tensor_core/engine/{head_dim}/group_4/{blocks}x4x{stages}/{dtype}"
        contains, targets = ("UTMALDG.5D*", *TENSOR_CORES[:3], "MOVM.16.MT88"), ((9, 0), (10, 0))
        yield Specimen(name, kernel, (*arguments[:-2], *maps), threads, blocks, shared_bytes, contains, targets=targets)
    for head_dim, keys, tensor_copies in ((64, 32, True), (128, 16, True), (128, 16, False)):
        shape = SplitShape(4, keys, 4, 1, tensor_copies)
        clusters, threads, shared_bytes = split_cluster.make_cluster_kernel(dtype, head_dim, BLOCK_SIZE, 4, 8, shape)
        name = f"attention/split_cluster/{head_dim}/group_4/{'engine/' * tensor_copies}{dtype}"
        maps = (types.uint64 if tensor_copies else types.none,) * 2
        types_of_cluster = (*inputs(dtype), array(dtype, 3), *BATCH, FLOAT32, INT32, *maps)
        contains = (*TENSOR_CORES[:3], "MOVM.16.MT88", "UCGABAR_ARV")
        yield Specimen(name, clusters, types_of_cluster, threads, 1, shared_bytes, contains, targets=hopper)
    for head_dim in (64, 128):
        prefix, threads, shared_bytes = split_cascade.make_prefix_kernel(dtype, head_dim, BLOCK_SIZE, 4)
        batch = (array(INT32, 1), array(INT32, 2), FLOAT32, INT32)
        name, types_of_prefix = f"attention/split_cascade/prefix/{head_dim}/group_4/{dtype}", (*inputs(dtype), *states, *batch)
        yield Specimen(name, prefix, types_of_prefix, threads, 1, shared_bytes, TENSOR_CORES)


def split_quantized_specimens(dtype):
    """Decoding over quantised caches: every format, one group and several, head sizes with even and odd numbers of chunks."""
    layouts = [("int8", 128, None, 4), ("int4", 128, None, 4), ("int4", 128, 64, 4), ("fp8_e4m3", 128, None, 4), ("fp8_e5m2", 128, None, 4)]
    layouts += [("int8", 80, None, 1), ("int4", 96, None, 16), ("int8", 256, None, 8), ("int4", 256, None, 8), ("int8", 64, 32, 16)]
    for name, head_dim, group_size, group in layouts if dtype == "bfloat16" else layouts[:1]:
        form = kv_format(name, head_dim, group_size)
        for capability, targets, line_heads in SPLIT_TARGETS:
            if name == "fp8_e4m3":
                targets = tuple(target for target in targets if target >= FP8_SINCE)
            shape = code_shape_for(form, group, line_heads, MULTIPROCESSORS[capability].block_shared_bytes)
            yield split_quantized_specimen(form, dtype, group, shape, targets)
    fetched = [("int8", 128, 4, 1024), ("int4", 128, 4, 8), ("int4", 128, 4, 1024), ("fp8_e4m3", 128, 8, 1024), ("int4", 256, 1, 1024)]
    for name, head_dim, group, line_heads in fetched if dtype == "bfloat16" else fetched[:1]:
        form = kv_format(name, head_dim)
        shape = code_shape_for(form, group, line_heads, MULTIPROCESSORS[9, 0].block_shared_bytes, tensor_copies=True)
        yield split_quantized_specimen(form, dtype, group, shape, ((9, 0), (10, 0)))


def split_quantized_specimen(form, dtype, group, shape, targets):
    """Decoding over caches of one format by blocks of one CodeShape, filled by cp.async or by TMA."""
    parts = (array(FLOAT32, 2), array(FLOAT32, 2), array(FLOAT32, 3), array(INT32, 1))
    codes, scales = array(UINT8, 4), array(FLOAT32, 1) if form.is_float else array("float16", 5)
    maps = (types.uint64 if shape.tensor_copies else types.none,) * 2
    arguments = (array(dtype, 3), codes, codes, scales, scales, array(dtype, 3), NO_LSE, *parts, *BATCH, FLOAT32, INT32, *maps)
    kernel, threads, shared_bytes = split_quantized.make_kernel(form, dtype, BLOCK_SIZE, group, None, shape)
    details = f"{form.name}/{form.head_dim}_by_{form.group_size}/group_{group}/{shape.blocks}x{shape.warps}x{shape.stages}"
    copies = "UTMALDG.2D*" if shape.tensor_copies else "LDGSTS*128*"
    contains = (*TENSOR_CORES[:3], copies, "MUFU.EX2", "MOVM.16.MT88") + (() if form.is_float else ("IMMA.16832.U8.S8",))
    name = f"attention/split_quantized/{'engine/' * shape.tensor_copies}{details}/{dtype}"
    spills = GROUP_SPILLS.get((form.head_dim, form.groups), {})
    return Specimen(name, kernel, arguments, threads, shape.blocks, shared_bytes, contains, spills=spills, targets=targets)


def flash_attention_2_quantized_specimens():
    """Tiles for long prompts, and for short ones; one block of 8 warps, or two of 4, fills an SM's registers."""
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
        targets = targets if dtype == "bfloat16" else (targets[-2],)  # dtypes differ only in loading queries and storing outputs
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
