"""Specimens of split_kv: the split kernel and the merge kernel."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, inputs, states
from minllm.kernels.attention.split_kv import merge, split_kv
from minllm.kernels.attention.split_kv.choice import BLOCKS_PER_SM
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array


def specimens():
    """All kernels of split_kv."""
    for dtype in FLOAT_DTYPES:
        yield from split_kv_specimens(dtype.name)


def split_kv_specimens(dtype):
    """The split kernel, with the blocks per SM that choose_splits assumes, and the merge kernel."""
    for head_dim, group in ((40, 1), (64, 1), (64, 4), (128, 4), (128, 8), (256, 8)):
        kernel, threads, _, _ = split_kv.make_split_kernel(dtype, head_dim, BLOCK_SIZE, group)
        # A lane holds its elements of every query head of a group; with the largest groups only two blocks fit.
        blocks = 2 if head_dim * group >= 1024 else BLOCKS_PER_SM
        arguments = (*inputs(dtype), *states(3), *BATCH, FLOAT32, INT32)
        name = f"attention/split_kv/{head_dim}/group_{group}/{dtype}"
        yield Specimen(name, kernel, arguments, threads, blocks, 0, ("LDG*128*", "MUFU.EX2"))
    for head_dim in (64, 128, 256):
        kernel, threads = merge.make_merge_kernel(head_dim)
        arguments = (*states(3), array(dtype, 3), array(INT32, 1), array(INT32, 1), INT32, INT32)
        yield Specimen(f"attention/split_merge/{head_dim}/{dtype}", kernel, arguments, threads, blocks=6)
