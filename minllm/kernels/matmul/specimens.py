"""The kernels of quantised GEMMs as they are launched."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.matmul.quantized import specimens as quantized


def specimens():
    """All of them, in all dtypes."""
    for dtype in FLOAT_DTYPES:
        yield from quantized.specimens(dtype.name)
