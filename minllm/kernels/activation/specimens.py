"""The activation kernels as they are launched."""

from minllm.kernels.activation.gelu import BLOCK, FORMULAS, gelu_kernel, gelu_vector_kernel
from minllm.kernels.activation.silu import BLOCK as SILU_BLOCK
from minllm.kernels.activation.silu import silu_and_multiply_kernel, silu_and_multiply_vector_kernel
from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.specimen import Specimen, array

WIDE = ("LDG*128*", "STG*128*")


def specimens():
    """All activation kernels. They are memory-bound: enough blocks to fill most of an SM, or half of it with two loads per thread."""
    for dtype in FLOAT_DTYPES:
        both = (array(dtype.name, 2), array(dtype.name, 2))
        yield Specimen(f"activation/silu/elements/{dtype}", silu_and_multiply_kernel, both, SILU_BLOCK, blocks=24)
        kernel = silu_and_multiply_vector_kernel(dtype)
        yield Specimen(f"activation/silu/vectors/{dtype}", kernel, both, SILU_BLOCK, blocks=24, contains=WIDE)
        for approximate in FORMULAS:
            name = "gelu_tanh" if approximate == "tanh" else "gelu"
            yield Specimen(f"activation/{name}/elements/{dtype}", gelu_kernel(approximate), both, BLOCK, blocks=12)
            kernel = gelu_vector_kernel(approximate, dtype)
            yield Specimen(f"activation/{name}/vectors/{dtype}", kernel, both, BLOCK, blocks=8, contains=WIDE)
