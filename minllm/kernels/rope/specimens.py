"""The RoPE kernel as it is launched."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.rope.rotate import HEADS_A_BLOCK, WARP, rope_kernel
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array


def specimens():
    """All of them. Memory is the limit: 8 blocks of 4 warps a multiprocessor, half of its warps."""
    for dtype in FLOAT_DTYPES:
        arguments = (array(dtype.name, 3), array(INT32, 1), array(FLOAT32, 2), array(dtype.name, 3), INT32)
        yield Specimen(f"rope/rotate/{dtype}", rope_kernel, arguments, WARP * HEADS_A_BLOCK, blocks=8)
