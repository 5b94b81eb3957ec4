"""Specimens of fixed_split: the kernel for rows of decode steps, verification and prompts, and the merge."""

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, TENSOR_CORES, inputs, states
from minllm.kernels.attention.fixed_split.fixed_split import warps_of
from minllm.kernels.attention.fixed_split.kernel import make_kernel
from minllm.kernels.attention.fixed_split.merge import make_merge_kernel
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.machine.numba_cuda import types

GROUP = 4  # query heads per KV head


def specimens():
    """All kernels of fixed_split."""
    for dtype in (one.name for one in HALF_DTYPES):
        for head_dim in (40, 64, 128):
            for warps in sorted({warps_of(rows) for rows in (GROUP, 5 * GROUP, 64 * GROUP)}):
                for folds in (False, True):
                    yield split_specimen(dtype, head_dim, warps, folds)
    for head_dim in (40, 128):
        arguments = (*states(3), array("bfloat16", 3), *BATCH[:2], FLOAT32, INT32)
        merge, threads = make_merge_kernel(head_dim)
        yield Specimen(f"attention/fixed_split/merge/{head_dim}/bfloat16", merge, arguments, threads, blocks=4)


def split_specimen(dtype, head_dim, warps, folds):
    """The kernel for tiles of 16 * warps rows; folds: one block takes all keys of its rows."""
    shape = (head_dim, BLOCK_SIZE, GROUP, warps)
    kernel, threads, shared_bytes = make_kernel(dtype, *shape, folds)
    out = (types.none, types.none, types.none) if folds else states(3)
    arguments = (*inputs(dtype), array(dtype, 3), *out, *BATCH, FLOAT32, INT32, INT32)
    name = f"attention/fixed_split/{'all_keys' if folds else 'parts'}/{head_dim}/{16 * warps}/{dtype}"
    spills = {(12, 0): 4} if (head_dim, warps, folds) == (128, 4, True) else {}
    return Specimen(name, kernel, arguments, threads, kernel.options["launch_bounds"][1], shared_bytes, TENSOR_CORES, spills=spills)
