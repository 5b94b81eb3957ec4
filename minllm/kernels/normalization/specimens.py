"""The normalisation kernels as they are launched.

A constant that decides the register count takes its smallest and its largest value.
"""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.normalization.layer_norm import BLOCK, layer_norm_kernel, layer_norm_vector_kernel
from minllm.kernels.normalization.rms_norm import rms_norm_kernel, rms_norm_vector_kernel
from minllm.kernels.normalization.rms_norm_quantized import rms_norm_quantized_kernel
from minllm.kernels.normalization.row import HELD, THREADS
from minllm.kernels.specimen import FLOAT32, FP8_TARGETS, INT32, TARGETS, UINT8, Specimen, array
from minllm.kernels.vector import VECTOR_BYTES

WIDE = ("LDG*128*", "STG*128*")


def specimens():
    """All normalisation kernels.

    One block takes a row: the vector kernels use up to 1,024 threads and hold it in registers.
    """
    for dtype in FLOAT_DTYPES:
        line, matrix, most = array(dtype.name, 1), array(dtype.name, 2), HELD * dtype.itemsize // VECTOR_BYTES
        codes, scales = array(UINT8, 2), array(FLOAT32, 1)
        rms_elements = (matrix, matrix, INT32, line, matrix, FLOAT32)
        rms_vectors = (matrix, matrix, line, matrix, FLOAT32)
        layer_elements = (matrix, matrix, INT32, line, line, INT32, matrix, FLOAT32)
        layer_vectors = (matrix, matrix, line, line, matrix, FLOAT32)
        yield Specimen(f"normalization/rms_norm/elements/{dtype}", rms_norm_kernel, rms_elements, BLOCK, blocks=5)
        yield Specimen(f"normalization/layer_norm/elements/{dtype}", layer_norm_kernel, layer_elements, BLOCK, blocks=5)
        for pieces in (1, most):
            kernel = rms_norm_vector_kernel(dtype, pieces, True)
            yield Specimen(f"normalization/rms_norm/vectors/{pieces}/{dtype}", kernel, rms_vectors, THREADS, blocks=1, contains=WIDE)
            for code, targets in (("int8", TARGETS), ("fp8", FP8_TARGETS)):
                kernel, arguments = rms_norm_quantized_kernel(code, dtype, pieces, True), (matrix, matrix, line, codes, scales, FLOAT32)
                name = f"normalization/rms_norm_quantized/{code}/{pieces}/{dtype}"
                yield Specimen(name, kernel, arguments, THREADS, blocks=1, contains=WIDE, targets=targets)
            kernel = layer_norm_vector_kernel(dtype, pieces, True, True)
            yield Specimen(f"normalization/layer_norm/vectors/{pieces}/{dtype}", kernel, layer_vectors, THREADS, blocks=1, contains=WIDE)
