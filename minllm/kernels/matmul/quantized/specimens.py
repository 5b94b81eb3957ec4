"""The kernels of quantised weights as they are launched: 1 and 8 rows of x, all formats."""

from numba.cuda import types

from minllm.kernels.matmul.quantized import fp8, fp8_block, int4, int4_tensor_core, int8, int8_groups, many_rows, nf4, row_groups
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
        for suffix, zeros, minimums in (("", types.none, types.none), ("_zeros", CODES, types.none), ("_minimums", types.none, SCALES)):
            kind = f"{group}{suffix}"
            for m in (1, 8):
                arguments = (matrix, CODES, SCALES, zeros, minimums, bias, matrix)
                kernel = int4.int4_gemv_kernel(m, group, dtype)
                yield Specimen(f"matmul/int4_gemv/{m}/{kind}/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
            kernel, arguments = int4.dequantize_int4_kernel(group, dtype), (CODES, SCALES, zeros, minimums, matrix)
            yield Specimen(f"matmul/dequantize_int4/{kind}/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
    if dtype in int4_tensor_core.MAGIC:
        yield from int4_tensor_core_specimens(dtype, matrix, bias)
    weight = (CODES, CODES, ONE_VECTOR, ONE_VECTOR, ONE_VECTOR, array(INT32, 1), ONE_VECTOR)
    for m in (1, 8):
        kernel = nf4.nf4_gemv_kernel(m, dtype)
        yield Specimen(f"matmul/nf4_gemv/{m}/{dtype}", kernel, (matrix, *weight, bias, matrix), threads, 4, contains=LOADS)
        arguments = (matrix, CODES, array(FLOAT32, 2), types.none, *weight[3:], bias, matrix)
        yield Specimen(f"matmul/nf4_gemv/{m}/not_nested/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
    kernel = nf4.dequantize_nf4_kernel(dtype)
    yield Specimen(f"matmul/dequantize_nf4/{dtype}", kernel, (*weight, matrix), threads, 4, contains=LOADS)
    yield from specimens_in_groups_of_8_bits(dtype, matrix, bias, threads)


def int4_tensor_core_specimens(dtype, matrix, bias):
    """One and two tiles of 8 rows, with and without zeros; two blocks of 256 threads have 32 KB of codes in flight."""
    threads = int4_tensor_core.WARPS * WARP
    for m in (1, 8, 16):
        for suffix, zeros in (("", types.none), ("_zeros", CODES)):
            arguments, kernel = (matrix, CODES, SCALES, zeros, bias, matrix), int4_tensor_core.int4_tensor_core_kernel(m, 128, dtype)
            name = f"matmul/int4_tensor_core/{m}/128{suffix}/{dtype}"
            yield Specimen(name, kernel, arguments, threads, 2, contains=("HMMA*", *LOADS))


def specimens_in_groups_of_8_bits(dtype, matrix, bias, threads):
    """int8 in groups of 32, and fp8 in blocks."""
    codes = array(types.int8, 2)
    for m in (1, 8):
        kernel = int8_groups.int8_group_gemv_kernel(m, 32, dtype)
        yield Specimen(f"matmul/int8_group_gemv/{m}/{dtype}", kernel, (matrix, codes, SCALES, bias, matrix), threads, 4, contains=LOADS)
    kernel = int8_groups.dequantize_int8_groups_kernel(32, dtype)
    yield Specimen(f"matmul/dequantize_int8_groups/{dtype}", kernel, (codes, SCALES, matrix), threads, 4, contains=LOADS)
    scales, only = array(FLOAT32, 2), dict(targets=FP8_TARGETS)
    for m in (1, 8):
        arguments = (CODES, scales, CODES, scales, array(INT32, 1), bias, matrix)
        kernel = fp8_block.fp8_block_gemv_kernel(m)
        yield Specimen(f"matmul/fp8_block_gemv/{m}/{dtype}", kernel, arguments, threads, 4, contains=LOADS, **only)
    arguments = (CODES, scales, array(INT32, 1), matrix)
    yield Specimen(f"matmul/dequantize_fp8_block/{dtype}", fp8_block.dequantize_fp8_block_kernel, arguments, threads, 8, **only)
    threads = row_groups.WARPS * WARP
    for kind, outputs in (("codes", (CODES, scales)), ("numbers", (matrix, types.none))):
        kernel = row_groups.quantize_row_groups_kernel(kind == "numbers")
        yield Specimen(f"matmul/quantize_row_groups/{kind}/{dtype}", kernel, (matrix, *outputs), threads, 4, **only)


