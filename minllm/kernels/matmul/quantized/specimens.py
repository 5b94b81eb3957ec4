"""Specimens of the kernels of quantised weights: GEMVs with 1 and 8 rows of x, and tensor-core kernels."""

import functools

import numpy as np
from numba.cuda import types

from minllm.kernels.matmul.flat.flat_wgmma import flat_wgmma_kernel
from minllm.kernels.matmul.quantized import (
    fp8,
    fp8_block,
    fp8_block_wgmma,
    int4,
    int4_naive,
    int8,
    int8_groups,
    many_rows,
    nf4,
    row_groups,
    tensor_core,
)
from minllm.kernels.matmul.quantized.arguments import WARPS
from minllm.kernels.matmul.quantized.batched_gemv import gemv as batched_gemv
from minllm.kernels.matmul.quantized.int4_codes import Int4Arrays
from minllm.kernels.matmul.quantized.mixed_input.int4 import make_int4_decoder
from minllm.kernels.matmul.quantized.mixed_input.int8 import make_int8_decoder
from minllm.kernels.matmul.quantized.mixed_input.kernel import mixed_input_kernel
from minllm.kernels.matmul.quantized.mixed_input.nf4 import make_nf4_decoder
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleMaps
from minllm.kernels.matmul.quantized.mixed_input.tiling import choose_tiling
from minllm.kernels.matmul.quantized.rows import THREADS, quantize_rows_kernel, quantize_vectors_kernel
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.matmul.quantized.tensor_core_gemv.kernel import tensor_core_gemv_kernel
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import GATED, Attention, Gated, Plain, make_attention, make_plain
from minllm.kernels.matmul.wgmma.tiling import GATED_TILES, TILINGS
from minllm.kernels.matmul.wgmma.wgmma import CODES as CODE_DTYPES
from minllm.kernels.matmul.wgmma.wgmma import wgmma_kernel
from minllm.kernels.normalization.row import HELD
from minllm.kernels.normalization.row import THREADS as MOST_THREADS
from minllm.kernels.specimen import FLOAT32, FP8_TARGETS, INT32, TARGETS, UINT8, Specimen, array
from minllm.kernels.vector import VECTOR_BYTES
from minllm.tiles.warp import WARP

GROUPS = (32, 64, 128)
FLOAT16, UINT8_ITEMS = np.dtype(np.float16), np.dtype(np.uint8)
LOADS = ("LDG*128*",)
INSTRUCTIONS = {"float8_e4m3fn": "QGMMA.64x*", "int8": "IGMMA.64x*"}
ONE_VECTOR, CODES, SCALES = array(FLOAT32, 1), array(UINT8, 2), array(types.float16, 2)


def specimens(dtype):
    """Yield all kernels for activations of this dtype; 4 blocks of 128 threads per SM hide the latency of loads."""
    matrix, bias, threads = array(dtype, 2), array(dtype, 1), WARPS * WARP
    for name, gemv_kernel, widen_kernel, codes, targets in (
        ("int8", int8.int8_gemv_kernel, int8.widen_int8_kernel, array(types.int8, 2), TARGETS),
        ("fp8", fp8.fp8_gemv_kernel, fp8.widen_fp8_kernel, CODES, FP8_TARGETS),
    ):
        for as_numbers in (False, True):
            arguments = (matrix, matrix if as_numbers else CODES, ONE_VECTOR)
            kind, kernel = "numbers" if as_numbers else "codes", quantize_rows_kernel(name, as_numbers)
            yield Specimen(f"matmul/quantize_rows/{name}/{kind}/{dtype}", kernel, arguments, THREADS, 4, targets=targets)
        for pieces in (1, HELD * np.dtype(dtype).itemsize // VECTOR_BYTES):
            kernel, vectors = quantize_vectors_kernel(name, np.dtype(dtype), pieces), f"matmul/quantize_vectors/{name}/{pieces}/{dtype}"
            yield Specimen(vectors, kernel, (matrix, CODES, ONE_VECTOR), MOST_THREADS, 1, contains=LOADS, targets=targets)
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
            if group == GROUPS[0]:  # the first rung's kernel serves groups of any size
                arguments = (matrix, CODES, SCALES, zeros, minimums, bias, matrix)
                yield Specimen(f"matmul/int4_naive/{kind}/{dtype}", int4_naive.int4_naive_kernel, arguments, WARP, 16)
            kernel, arguments = int4.dequantize_int4_kernel(group, dtype), (CODES, SCALES, zeros, minimums, matrix)
            yield Specimen(f"matmul/dequantize_int4/{kind}/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
    weight = (CODES, CODES, ONE_VECTOR, ONE_VECTOR, ONE_VECTOR, array(INT32, 1), ONE_VECTOR)
    for m in (1, 8):
        kernel = nf4.nf4_gemv_kernel(m, dtype)
        yield Specimen(f"matmul/nf4_gemv/{m}/{dtype}", kernel, (matrix, *weight, bias, matrix), threads, 4, contains=LOADS)
        arguments = (matrix, CODES, array(FLOAT32, 2), types.none, *weight[3:], bias, matrix)
        yield Specimen(f"matmul/nf4_gemv/{m}/not_nested/{dtype}", kernel, arguments, threads, 4, contains=LOADS)
    kernel = nf4.dequantize_nf4_kernel(dtype)
    yield Specimen(f"matmul/dequantize_nf4/{dtype}", kernel, (*weight, matrix), threads, 4, contains=LOADS)
    yield from specimens_in_groups_of_8_bits(dtype, matrix, bias, threads)
    if dtype == "bfloat16":  # kernels with float16 outputs differ in one letter
        for code in CODE_DTYPES:
            yield from wgmma_specimens(code, matrix, bias)
            yield from flat_specimens(code, matrix)
        yield from fp8_block_wgmma_specimens(matrix, bias)
    if dtype != "float32":
        yield from mixed_input_specimens(dtype, matrix, weight)
        yield from tensor_core_gemv_specimens(dtype, matrix, bias)
        yield from batched_gemv_specimens(dtype, matrix, bias)


def specimens_in_groups_of_8_bits(dtype, matrix, bias, threads):
    """Yield the kernels of int8 in groups of 32, and of fp8 in blocks."""
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


def wgmma_specimens(code, matrix, bias):
    """Yield W8A8 by wgmma, Hopper only: all tilings, plain and gated.

    One has a bias, and one has outputs that TMA cannot store.
    """
    instruction = INSTRUCTIONS[code]
    for tiling in TILINGS:
        cluster, early = "/cluster" if tiling.cluster > 1 else "", "/early" if tiling.early else ""
        name = f"matmul/wgmma/{code}/{tiling.tile_m}x{tiling.tile_n}{cluster}{early}"
        yield codes_specimen(name, tiling, code, types.none, matrix, instruction)
        if tiling.tile_n in GATED_TILES:
            yield codes_specimen(f"{name}/silu", tiling._replace(chunks=1), code, types.none, matrix, instruction, gated=True)
    yield codes_specimen(f"matmul/wgmma/{code}/bias", TILINGS[0], code, bias, matrix, instruction)
    yield codes_specimen(f"matmul/wgmma/{code}/out float32", TILINGS[0], code, types.none, array("float32", 2), instruction)


def codes_specimen(name, tiling, code, bias, out, instruction, gated=False):
    """Return a specimen of wgmma over codes; float32 outputs are stored from registers."""
    copied = out.dtype != FLOAT32
    kernel = wgmma_kernel(tiling, code, gated, copied, "bfloat16" if copied else "float32")
    maps = types.uint64, types.uint64, types.uint64 if copied else types.none
    arguments = (*maps, bias, types.none, ONE_VECTOR, ONE_VECTOR, out, types.int32, types.int32)
    contains = (instruction, "UTMALDG.2D*", "SYNCS.PHASECHK*", "WARPGROUP.DEPBAR*")
    return Specimen(f"{name}/bfloat16", kernel, arguments, tiling.threads, 1, tiling.shared_bytes, contains, targets=((9, 0),))


def fp8_block_wgmma_specimens(matrix, bias):
    """Yield fp8 in blocks by wgmma, Hopper only: all tilings, plain with a bias, and gated.

    float32 outputs are stored from registers.
    """
    scales, contains = array(FLOAT32, 2), ("QGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")
    for gated, tilings in ((False, fp8_block_wgmma.TILINGS), (True, fp8_block_wgmma.GATED_TILINGS)):
        for tiling in tilings:
            kernel = wgmma_kernel(tiling, fp8_block_wgmma.DTYPE, gated, True, "bfloat16", fp8_block_wgmma.make_consume)
            maps, line = (types.uint64, types.uint64, types.uint64), types.none if gated else bias
            arguments = (*maps, line, types.none, scales, scales, matrix, types.int32, types.int32)
            kind = f"{'silu/' if gated else ''}{tiling.tile_m}x{tiling.tile_n}{'/cluster' if tiling.cluster > 1 else ''}"
            name = f"matmul/fp8_block_wgmma/{kind}/bfloat16"
            yield Specimen(name, kernel, arguments, tiling.threads, 1, tiling.shared_bytes, contains, targets=((9, 0),))
    tiling = fp8_block_wgmma.TILINGS[0]
    kernel = wgmma_kernel(tiling, fp8_block_wgmma.DTYPE, False, False, "float32", fp8_block_wgmma.make_consume)
    arguments = (types.uint64, types.uint64, types.none, bias, types.none, scales, scales, array("float32", 2), types.int32, types.int32)
    name = "matmul/fp8_block_wgmma/out float32/bfloat16"
    yield Specimen(name, kernel, arguments, tiling.threads, 1, tiling.shared_bytes, contains, targets=((9, 0),))


def flat_specimens(code, matrix):
    """Yield the flat W8A8 GEMM for few rows, Hopper only: plain and gated, with the tilings that the launcher chooses."""
    for gated in (False, True):
        for tokens, n, k in ((8, 4096, 14336), (16, 28672, 4096), (64, 6144, 4096), (256, 6144, 4096)):
            tiling = tensor_core.choose_flat_tiling(tokens, n, k // 2, gated)
            kernel = flat_wgmma_kernel(tokens, tiling, code, gated, 8, "bfloat16")
            arguments = (types.uint64, types.uint64, types.none, ONE_VECTOR, ONE_VECTOR, matrix, types.int32)
            name = f"matmul/flat/wgmma/{code}/{'gated/' if gated else ''}{tokens}x{n}x{k}/bfloat16"
            contains = (INSTRUCTIONS[code], "UTMALDG.2D*", "SYNCS.PHASECHK*")
            yield Specimen(name, kernel, arguments, tiling.threads, 1, tiling.shared_bytes(tokens), contains, targets=((9, 0),))


def mixed_input_specimens(dtype, matrix, nf4_weight):
    """Yield mixed-input GEMMs, Hopper only: the tilings chosen for 16 to 2,048 rows, plain and gated, in every format.

    With 256 rows and few outputs the warpgroups of a block divide K; with 64 rows and many outputs two blocks share an SM.
    """
    for m, outputs, group_size, has_zeros, has_minimums, gated in (
        (2048, 4096, 128, False, False, False), (2048, 14336, 32, True, False, True), (128, 4096, 64, True, False, False),
        (128, 4096, 128, False, False, True), (2048, 4096, 32, False, True, False), (16, 4096, 32, False, True, True),
        (256, 6144, 128, False, False, False), (256, 2048, 32, True, False, True), (64, 28672, 32, False, True, False),
    ):  # fmt: skip
        kind = f"{group_size}{'_minimums' if has_minimums else '_zeros' if has_zeros else ''}"
        decoder = make_int4_decoder(dtype, group_size, FLOAT16, UINT8_ITEMS if has_zeros else None, FLOAT16 if has_minimums else None)
        yield mixed_input_specimen("int4", kind, m, outputs, gated, decoder, types.none, dtype, matrix)
    not_nested = (CODES, array(FLOAT32, 2), types.none, *nf4_weight[3:])
    for m, outputs, gated, arrays in (
        (2048, 4096, False, nf4_weight), (2048, 4096, True, nf4_weight), (16, 4096, False, nf4_weight), (128, 4096, True, not_nested),
        (256, 4096, False, nf4_weight), (64, 14336, True, nf4_weight),
    ):  # fmt: skip
        kind = "nested" if arrays is nf4_weight else "not_nested"
        weight = types.NamedTuple((*arrays, INT32), nf4.Nf4Arrays)
        yield mixed_input_specimen("nf4", kind, m, outputs, gated, make_nf4_decoder(dtype, arrays is nf4_weight), weight, dtype, matrix)
    for m, outputs, gated in ((2048, 4096, False), (2048, 4096, True), (16, 4096, False), (256, 4096, False), (64, 28672, False)):
        yield mixed_input_specimen("int8", "32", m, outputs, gated, make_int8_decoder(dtype, 32, FLOAT16), types.none, dtype, matrix)


def mixed_input_specimen(code, kind, m, outputs, gated, decoder, weight, dtype, matrix):
    """Return the specimen of a mixed-input GEMM with K = 4096."""
    tiling = choose_tiling(m, outputs, 4096, gated, decoder.row_bytes, decoder.table_bytes)
    kernel = mixed_input_kernel(tiling, decoder, dtype, gated, 8)
    maps = types.NamedTuple([types.uint64 if i < len(decoder.scales) else types.none for i in range(2)], ScaleMaps)
    out_map, stores = (types.uint64, ("UTMASTG.2D*",)) if tiling.batches else (types.none, ())
    arguments = (types.uint64, types.uint64, maps, out_map, weight, types.none, matrix, types.int32)
    name = f"matmul/mixed_input_{code}/{'gated/' if gated else ''}{tiling.rows}x{tiling.tokens}/{kind}/{dtype}"
    loads = "LDS" if code == "int8" else "LDS.128"
    contains, shared_bytes = ("HGMMA.64x*", "UTMALDG.2D*", loads, *stores), tiling.shared_bytes(decoder.row_bytes)
    return Specimen(name, kernel, arguments, tiling.threads, tiling.blocks, shared_bytes, contains, targets=((9, 0),))


def tensor_core_gemv_specimens(dtype, matrix, bias):
    """Yield tensor-core GEMVs in every format, with the tilings chosen for the weights of 8B and 1B models.

    Plain with residual, gate and up with norm, and queries, keys and values with norm and bias.
    """
    for name in tensor_core_gemv_weights():
        for outputs in ("plain", "gated", "qkv"):
            yield tensor_core_gemv_specimen(name, outputs, 4096, dtype, matrix, bias)
    for name in ("int4/128", "int4/32_zeros", "nf4/nested", "int8", "fp8"):
        for k in (2048, 14336):
            yield tensor_core_gemv_specimen(name, "plain", k, dtype, matrix, bias)


def tensor_core_gemv_weights():
    """Return {name of a format: (its Format, make_operand(K, tiling, dtype), the types of its weight's arrays)}."""
    bits, zeros, none = array(types.uint16, 1), array(UINT8, 1), types.none
    found = {}
    for group_size, suffix, has_zeros, has_minimums in (
        (128, "", False, False), (128, "_zeros", True, False), (64, "", False, False), (32, "", False, False),
        (32, "_zeros", True, False), (32, "_minimums", False, True),
    ):  # fmt: skip
        arrays = Int4Arrays(zeros, bits, zeros if has_zeros else none, bits if has_minimums else none, INT32)
        kind = dict(group_size=group_size, scale_dtype="float16", has_zeros=has_zeros, has_minimums=has_minimums)
        make_operand = functools.partial(tensor_core_gemv.int4.make_int4_operand, **kind)
        found[f"int4/{group_size}{suffix}"] = tensor_core_gemv.INT4, make_operand, arrays
    for kind, absmax, nested in (("nested", zeros, ONE_VECTOR), ("not_nested", ONE_VECTOR, none)):
        arrays = nf4.Nf4Arrays(zeros, absmax, nested, ONE_VECTOR, ONE_VECTOR, array(INT32, 1), ONE_VECTOR, INT32)
        make_operand = functools.partial(tensor_core_gemv.nf4.make_nf4_operand, is_nested=kind == "nested")
        found[f"nf4/{kind}"] = tensor_core_gemv.NF4, make_operand, arrays
    for code, form, codes in (("int8", tensor_core_gemv.INT8, array(types.int8, 1)), ("fp8", tensor_core_gemv.FP8, zeros)):
        arrays = tensor_core_gemv.codes.Codes(codes, ONE_VECTOR)
        found[code] = form, functools.partial(tensor_core_gemv.codes.make_codes_operand, code), arrays
    return found


SPILLED = {  # most bytes that a kernel may spill, by form and compute capability
    "fp8/plain/4096": {(9, 0): 44, (10, 0): 16},
    "int4/128/gated/4096": {(8, 0): 6, (8, 9): 6},
    "int4/128/plain/14336": {(8, 0): 16, (8, 9): 16},
    "int4/32_minimums/qkv/4096": {(10, 0): 4},
    "int4/32_zeros/qkv/4096": {(10, 0): 4},
    "int8/plain/14336": {(9, 0): 8},
}


def tensor_core_gemv_specimen(name, outputs, k, dtype, matrix, bias):
    """Return the specimen of a tensor-core GEMV over rows of `k` numbers."""
    form, make_operand, weight = tensor_core_gemv_weights()[name]
    index, table, heads, none = array(INT32, 1), array(FLOAT32, 2), array(dtype, 3), types.none
    n, norm, made, arrays = {
        "plain": (min(k, 4096), none, make_plain(False, True), Plain(none, bias, bias)),
        "gated": (28672, bias, GATED, Gated(bias)),
        "qkv": (6144, bias, make_attention(128, True), Attention(bias, index, index, table, heads, heads, heads)),
    }[outputs]
    tiling = tensor_core_gemv.choose_tiling(form, n, k)
    operand = make_operand(k, tiling, dtype)
    weight, arrays = (types.NamedTuple(tuple(one), type(one)) for one in (weight, arrays))
    arguments = (matrix, norm, weight, arrays, INT32, INT32, FLOAT32)
    return Specimen(
        f"matmul/tensor_core_gemv/{name}/{outputs}/{n}x{k}/{dtype}",
        tensor_core_gemv_kernel(tiling, operand, made),
        arguments,
        tiling.threads,
        tiling.blocks,
        operand.x_bytes,
        contains=({"int8": "IMMA*", "fp8": "[HQ]MMA*"}.get(name, "HMMA*"), *LOADS),
        spills=SPILLED.get(f"{name}/{outputs}/{k}", {}),
        targets=TARGETS if form.since <= TARGETS[0] else FP8_TARGETS,
    )


def batched_gemv_specimens(dtype, matrix, bias):
    """Yield batched GEMVs, Hopper only: 8 and 16 rows of x, with the tilings chosen for the weights of an 8B model."""
    for name in batched_gemv_weights():
        for tokens in (8, 16):
            for n, k in ((28672, 4096), (6144, 4096), (4096, 14336)):
                yield batched_gemv_specimen(name, tokens, n, k, dtype, matrix, bias)


def batched_gemv_weights():
    """Return {name of a format: (make_decoder(dtype, K, tiling), the types of its weight's arrays)}."""
    bits, codes, none = array(types.uint16, 1), array(UINT8, 1), types.none
    found = {}
    for group_size, suffix, has_zeros, has_minimums in (
        (128, "", False, False), (128, "_zeros", True, False), (64, "", False, False), (32, "_minimums", False, True),
    ):  # fmt: skip
        arrays = Int4Arrays(codes, bits, codes if has_zeros else none, bits if has_minimums else none, INT32)
        kind = (group_size, "float16", has_zeros, has_minimums)
        found[f"int4/{group_size}{suffix}"] = lambda dtype, k, tiling, kind=kind: batched_gemv.make_int4_decoder(dtype, *kind), arrays
    for kind, absmax, nested in (("nested", codes, ONE_VECTOR), ("not_nested", ONE_VECTOR, none)):
        arrays = nf4.Nf4Arrays(codes, absmax, nested, ONE_VECTOR, ONE_VECTOR, array(INT32, 1), ONE_VECTOR, INT32)
        nests = kind == "nested"
        found[f"nf4/{kind}"] = (
            lambda dtype, k, tiling, nests=nests: batched_gemv.make_nf4_decoder(dtype, tiling.threads, nests), arrays
        )  # fmt: skip
    return found


SPILLED_BY_BATCHED_GEMV = {"16x4096x14336/float16": 8}  # most bytes that a kernel of any format may spill


def batched_gemv_specimen(name, tokens, n, k, dtype, matrix, bias):
    """Return the specimen of a batched GEMV; a weight [28672, K] is gate and up."""
    make_decoder, arrays = batched_gemv_weights()[name]
    gated, tiling = n == 28672, batched_gemv.choose_tiling(tokens, n, k)
    decoder = make_decoder(dtype, k, tiling)
    weight, shape = types.NamedTuple(tuple(arrays), type(arrays)), f"{tokens}x{n}x{k}/{dtype}"
    return Specimen(
        f"matmul/batched_gemv/{name}/{'gated/' if gated else ''}{shape}",
        batched_gemv.batched_gemv_kernel(tiling, decoder, batched_gemv.GATED if gated else batched_gemv.PLAIN, dtype, k),
        (matrix, weight, types.none if gated else bias, matrix, INT32, INT32),
        tiling.threads,
        tiling.blocks,
        batched_gemv.dynamic_bytes(tiling, k // batched_gemv.INPUTS, decoder.groups),
        contains=("HMMA*", *LOADS, "STAS*"),
        spills={(9, 0): SPILLED_BY_BATCHED_GEMV.get(shape, 0)},
        targets=((9, 0),),
    )
