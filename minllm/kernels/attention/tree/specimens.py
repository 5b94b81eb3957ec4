"""Specimens of tree attention: on tensor cores, and in float32."""

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, TENSOR_CORES, inputs
from minllm.kernels.attention.tree.tree import make_kernel
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array


def specimens():
    """All kernels of tree attention."""
    for dtype in (*(one.name for one in HALF_DTYPES), "float32"):
        for head_dim in (64, 128, 256):
            kernel, tiles = make_kernel(dtype, head_dim, BLOCK_SIZE)
            arguments = (*inputs(dtype), array(dtype, 3), *BATCH, array(INT32, 1), array(INT32, 2), INT32, FLOAT32, INT32)
            contains, blocks = (("LDG*128*", "MUFU.EX2"), 1) if dtype == "float32" else (TENSOR_CORES, tiles.launch_bounds[1])
            yield Specimen(
                f"attention/tree/{head_dim}/{dtype}", kernel, arguments, tiles.threads, blocks, tiles.shared_bytes, contains
            )
