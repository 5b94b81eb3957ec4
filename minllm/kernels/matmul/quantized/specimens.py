"""The kernels of quantised weights as they are launched: 1 and 8 rows of x, all formats."""

from numba.cuda import types

from minllm.kernels.matmul.quantized import fp8, int4, int8, many_rows, nf4
from minllm.kernels.matmul.quantized.arguments import WARPS
from minllm.kernels.matmul.quantized.rows import THREADS, quantize_rows_kernel
from minllm.kernels.specimen import FLOAT32, INT32, TARGETS, UINT8, Specimen, array
from minllm.tiles.warp import WARP

FP8_TARGETS = tuple(target for target in TARGETS if target >= (8, 9))
GROUPS = (32, 64, 128)
LOADS = ("LDG*128*",)
ONE_VECTOR, CODES, SCALES = array(FLOAT32, 1), array(UINT8, 2), array(types.float16, 2)


def specimens(dtype):
    """All kernels for activations of this dtype; 4 blocks of 128 threads hide the latency of loads."""
    matrix, bias, threads = array(dtype, 2), array(dtype, 1), WARPS * WARP
    for name, gemv_kernel, widen_kernel, codes, targets in (
        ("int8", int8.int8_gemv_kernel, int8.widen_int8_kernel, array(types.int8, 2), TARGETS),
        ("fp8", fp8.fp8_gemv_kernel, fp8.widen_fp8_kernel, CODES, FP8_TARGETS),
    ):
        for as_numbers in (False, True):
            arguments = (matrix, matrix if as_numbers else CODES, ONE_VECTOR)
            kind, kernel = "numbers" if as_numbers else "codes", quantize_rows_kernel(name, as_numbers)
            yield Specimen(f"matmul/quantize_rows/{name}/{kind}/{dtype}", kernel, arguments, THREADS, 4, targets=targets)
        for m in (1, 8):
            arguments = (CODES, ONE_VECTOR, codes, ONE_VECTOR, bias, matrix)
            yield Specimen(f"matmul/{name}_gemv/{m}/{dtype}", gemv_kernel(m), arguments, threads, 4, contains=LOADS, targets=targets)
        yield Specimen(f"matmul/widen_{name}/{dtype}", widen_kernel, (codes, matrix), threads, 8, targets=targets)
    arguments = (array(FLOAT32, 2), ONE_VECTOR, ONE_VECTOR, bias, matrix)
    yield Specimen(f"matmul/scale_sums/{dtype}", many_rows.scale_sums_kernel, arguments, many_rows.THREADS, 6)
    for group in GROUPS:
        for zeros in (types.none, CODES):
            kind = f"{group}{'' if zeros is types.none else '_zeros'}"
            for m in (1, 8):
                arguments = (matrix, CODES, SCALES, zeros, bias, matrix)
                kernel = int4.int4_gemv_kernel(m, group, dtype)
                yield Specimen(f"matmul/int4_gemv/{m}/{kind}/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
            kernel = int4.dequantize_int4_kernel(group, dtype)
            yield Specimen(f"matmul/dequantize_int4/{kind}/{dtype}", kernel, (CODES, SCALES, zeros, matrix), threads, 4, contains=LOADS)
    weight = (CODES, CODES, ONE_VECTOR, ONE_VECTOR, ONE_VECTOR, array(INT32, 1), ONE_VECTOR)
    for m in (1, 8):
        kernel = nf4.nf4_gemv_kernel(m, dtype)
        yield Specimen(f"matmul/nf4_gemv/{m}/{dtype}", kernel, (matrix, *weight, bias, matrix), threads, 4, contains=LOADS)
    kernel = nf4.dequantize_nf4_kernel(dtype)
    yield Specimen(f"matmul/dequantize_nf4/{dtype}", kernel, (*weight, matrix), threads, 4, contains=LOADS)


