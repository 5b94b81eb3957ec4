"""Specimens of split_tensor_core and of the variants made of its parts."""

import dataclasses

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, NO_LSE, SPLIT_TARGETS, TENSOR_CORES, inputs
from minllm.kernels.attention.split_tensor_core import cluster, split_tensor_core, unified_maximum
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from minllm.kernels.attention.split_tensor_core.split_tensor_core import shape_for
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.machine.numba_cuda import types
from minllm.machine.occupancy import MULTIPROCESSORS

HOPPER = ((9, 0),)
MAPS = (types.uint64,) * 2  # addresses of the tensor maps of keys and values
BLOCK_SHARED_BYTES = MULTIPROCESSORS[9, 0].block_shared_bytes


def specimens():
    """All kernels of split_tensor_core, split_unified_maximum and split_cluster."""
    for dtype in HALF_DTYPES:
        yield from split_tensor_core_specimens(dtype.name)
        yield from tensor_copies_specimens(dtype.name)
        yield unified_maximum_specimen(dtype.name)
        yield from cluster_specimens(dtype.name)
    yield strided_specimen("bfloat16")


def arguments_of(dtype, maps=(types.none,) * 2):
    """The types of split_tensor_core's arguments; maps: of the tensor maps."""
    parts = (array(FLOAT32, 2), array(FLOAT32, 2), array(FLOAT32, 3), array(INT32, 1))
    return *inputs(dtype), array(dtype, 3), NO_LSE, *parts, *BATCH, FLOAT32, INT32, INT32, FLOAT32, *(types.none,) * 3, *maps


def split_tensor_core_specimens(dtype):
    """split_tensor_core with fair shares and fixed splits, and groups that fill one tile of 8 heads or two."""
    for head_dim, group, splits in ((40, 1, None), (64, 4, None), (128, 4, None), (128, 4, 8), (96, 16, None), (256, 8, None)):
        for capability, targets, line_heads in SPLIT_TARGETS:
            shape = shape_for(head_dim, group, line_heads, MULTIPROCESSORS[capability].block_shared_bytes)
            kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, head_dim, BLOCK_SIZE, group, splits, shape)
            details = f"{head_dim}/group_{group}{'/fixed' if splits else ''}/{shape.blocks}x{shape.warps}x{shape.stages}"
            name = f"attention/split_tensor_core/{details}/{dtype}"
            contains = (*TENSOR_CORES, "MOVM.16.MT88")
            yield Specimen(name, kernel, arguments_of(dtype), threads, shape.blocks, shared_bytes, contains, targets=targets)


def tensor_copies_specimens(dtype):
    """split_tensor_core with rings filled by TMA."""
    for head_dim, line_heads in ((64, 8), (64, 512), (128, 8), (128, 512), (256, 8)):
        shape = shape_for(head_dim, 4, line_heads, BLOCK_SHARED_BYTES, tensor_copies=True)
        kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, head_dim, BLOCK_SIZE, 4, None, shape)
        name = f"attention/split_tensor_core/engine/{head_dim}/group_4/{shape.blocks}x{shape.warps}x{shape.stages}/{dtype}"
        contains, targets = ("UTMALDG.5D*", *TENSOR_CORES[:3], "MOVM.16.MT88"), ((9, 0), (10, 0))
        yield Specimen(name, kernel, arguments_of(dtype, maps=MAPS), threads, shape.blocks, shared_bytes, contains, targets=targets)


def unified_maximum_specimen(dtype):
    """split_unified_maximum: one maximum for all scores."""
    shape = shape_for(128, 4, 8, BLOCK_SHARED_BYTES)
    softmax = unified_maximum.make_unified_softmax
    kernel, threads, shared_bytes = split_tensor_core.make_kernel(dtype, 128, BLOCK_SIZE, 4, None, shape, softmax)
    name = f"attention/split_unified_maximum/128/group_4/{dtype}"
    return Specimen(name, kernel, arguments_of(dtype), threads, shape.blocks, shared_bytes, TENSOR_CORES, targets=HOPPER)


def cluster_specimens(dtype):
    """split_cluster: a cluster of 8 blocks per KV head."""
    for head_dim, keys, tensor_copies in ((64, 32, True), (128, 16, True), (128, 16, False)):
        shape = SplitShape(4, keys, 4, 1, tensor_copies)
        kernel, threads, shared_bytes = cluster.make_cluster_kernel(dtype, head_dim, BLOCK_SIZE, 4, 8, shape)
        name = f"attention/split_cluster/{head_dim}/group_4/{'engine/' * tensor_copies}{dtype}"
        maps = MAPS if tensor_copies else (types.none,) * 2
        arguments = (*inputs(dtype), array(dtype, 3), *BATCH, FLOAT32, INT32, *maps)
        contains = (*TENSOR_CORES[:3], "MOVM.16.MT88", "UCGABAR_ARV")
        yield Specimen(name, kernel, arguments, threads, 1, shared_bytes, contains, targets=HOPPER)


def strided_specimen(dtype):
    """One kernel over a cache in which the layers of a token are adjacent."""
    of_hopper = (specimen for specimen in split_tensor_core_specimens(dtype) if specimen.targets == HOPPER)
    like = next(specimen for specimen in of_hopper if "/128/" in specimen.name)
    name, (query, _, _, *others) = like.name.replace("attention/", "attention/strided/", 1), like.arguments
    caches = (array(dtype, 4, gaps=True),) * 2
    return dataclasses.replace(like, name=name, arguments=(query, *caches, *others))
