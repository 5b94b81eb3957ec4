"""The RoPE kernels as they are launched."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.rope.rotate import HEADS_PER_BLOCK, THREADS, rope_kernel, rope_vector_kernel
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array
from minllm.tiles.warp import WARP


def specimens():
    """All RoPE kernels. They are memory-bound: 8 blocks of 4 warps per SM are half of its warps.

    A thread of the vector kernel has 8 loads in flight, so half as many blocks suffice.
    """
    for dtype in FLOAT_DTYPES:
        arguments = (array(dtype.name, 3), array(INT32, 1), array(FLOAT32, 2), array(dtype.name, 3), INT32)
        yield Specimen(
            f"rope/vectors/{dtype}", rope_vector_kernel(dtype, 128), arguments[:-1], THREADS, blocks=4, contains=("LDG*128*", "STG*128*")
        )
        yield Specimen(f"rope/rotate/{dtype}", rope_kernel, arguments, WARP * HEADS_PER_BLOCK, blocks=8)
