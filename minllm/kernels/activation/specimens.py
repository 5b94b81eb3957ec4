"""The activation kernels as they are launched."""

from minllm.kernels.activation.gelu import BLOCK, FORMULAS, gelu_kernel, gelu_vector_kernel
from minllm.kernels.activation.silu import BLOCK as SILU_BLOCK
from minllm.kernels.activation.silu import silu_and_multiply_kernel, silu_and_multiply_vector_kernel
from minllm.kernels.activation.silu_quantized import silu_quantized_kernel
from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.normalization.row import HELD
from minllm.kernels.normalization.row import THREADS as MOST_THREADS
from minllm.kernels.specimen import FLOAT32, FP8_TARGETS, TARGETS, UINT8, Specimen, array
from minllm.kernels.vector import VECTOR_BYTES

WIDE = ("LDG*128*", "STG*128*")


def specimens():
    """All activation kernels. They are memory-bound: enough blocks to fill most of an SM, or half of it with two loads per thread."""
    for dtype in FLOAT_DTYPES:
        both = (array(dtype.name, 2), array(dtype.name, 2))
        yield Specimen(f"activation/silu/elements/{dtype}", silu_and_multiply_kernel, both, SILU_BLOCK, blocks=24)
        kernel = silu_and_multiply_vector_kernel(dtype)
        yield Specimen(f"activation/silu/vectors/{dtype}", kernel, both, SILU_BLOCK, blocks=24, contains=WIDE)
        for code, targets in (("int8", TARGETS), ("fp8", FP8_TARGETS)):
            for pieces in (1, HELD * dtype.itemsize // VECTOR_BYTES):
                kernel, arguments = silu_quantized_kernel(code, dtype, pieces), (both[0], array(UINT8, 2), array(FLOAT32, 1))
                name = f"activation/silu_quantized/{code}/{pieces}/{dtype}"
                yield Specimen(name, kernel, arguments, MOST_THREADS, blocks=1, contains=WIDE[:1], targets=targets)
        for approximate in FORMULAS:
            name = "gelu_tanh" if approximate == "tanh" else "gelu"
            yield Specimen(f"activation/{name}/elements/{dtype}", gelu_kernel(approximate), both, BLOCK, blocks=12)
            kernel = gelu_vector_kernel(approximate, dtype)
            yield Specimen(f"activation/{name}/vectors/{dtype}", kernel, both, BLOCK, blocks=8, contains=WIDE)
