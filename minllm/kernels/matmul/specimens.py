"""The GEMM and GEMV kernels as they are launched: every tiling, every dtype."""

from dataclasses import replace

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat import fixed_order, flat_wgmma, fused
from minllm.kernels.matmul.flat import tiles as flat_tiles
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma_tiling
from minllm.kernels.matmul.flat.deferred_norm import deferred_norm_kernel
from minllm.kernels.matmul.flat.rope_append import rope_append_kernel
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.gemv.gemv_qkv import choose_qkv_tiling, gemv_qkv_kernel
from minllm.kernels.matmul.quantized import specimens as quantized
from minllm.kernels.specimen import TARGETS, Specimen, array
from minllm.machine.numba_cuda import types
from minllm.tiles.warp import WARP

STREAMED = ("LDG*NA*128*",)  # weights bypass L1, because each is used once
COPY_ENGINE = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")
# (rows of x, N, K, with bias): one weight shape for each tiling that launchers choose.
GEMV_SHAPES = ((1, 128256, 2048), (1, 2048, 8192), (4, 2048, 8200), (4, 128256, 2048), (8, 128256, 2048))
GATED_SHAPES = ((1, 16384, 2048), (1, 28672, 4096), (4, 16384, 2048), (8, 28672, 4096))


def operands(dtype, out_dtype=None, bias=True):
    """The types of x, weight, bias and out."""
    matrix = array(dtype, 2)
    return matrix, matrix, array(dtype, 1) if bias else types.none, array(out_dtype or dtype, 2)


def gemv_operands(dtype, out_dtype=None, norm=False, residual=False):
    """The types of gemv's x, norm, weight, bias, residual, out and epsilon."""
    matrix, out = array(dtype, 2), array(out_dtype or dtype, 2)
    return matrix, array(dtype, 1) if norm else types.none, matrix, types.none, matrix if residual else types.none, out, types.float32


def specimens():
    """All GEMM and GEMV kernels."""
    for dtype in FLOAT_DTYPES:
        name = dtype.name
        yield from gemv_specimens(name)
        yield from quantized.specimens(name)
    for dtype in HALF_DTYPES:
        yield from flat_specimens(dtype.name)
        yield from fused_specimens(dtype.name)


def gemv_specimens(dtype):
    """Decoding: the tilings that launchers choose, and rows that are not whole vectors. More warps mean more bytes in flight."""
    for m, n, k in GEMV_SHAPES:
        warps = 24 if m <= 4 else 16  # resident at one time; 8 rows of x need more registers per warp
        tiling = gemv.choose_tiling(m, n, k)
        kernel = gemv.gemv_kernel(m, k, dtype, tiling, True)
        yield gemv_specimen(f"{m}x{n}x{k}", kernel, gemv_operands(dtype, "float32"), tiling, warps, dtype)
    for m, n, k in GATED_SHAPES:
        tiling, warps = gemv.choose_gated_tiling(m, n, k), 24 if m <= 4 else 16
        kernel = gemv.gemv_kernel(m, k, dtype, tiling, True, gated=True)
        yield gemv_specimen(f"gated/{m}x{n}x{k}", kernel, gemv_operands(dtype), tiling, warps, dtype)
    if dtype == "bfloat16":  # the other dtypes differ only in how words are unpacked
        yield from gemv_step_specimens(dtype)
    tiling = gemv.choose_tiling(8, 2048, 2047)
    kernel = gemv.gemv_kernel(8, 2047, dtype, tiling, False)
    yield Specimen(f"matmul/gemv/elements/{dtype}", kernel, gemv_operands(dtype), tiling.warps * WARP, blocks=4)


def gemv_step_specimens(dtype):
    """The five GEMVs of a decode step of one sequence, as they are launched in 1B and 8B models."""
    vector, heads = array(dtype, 1), array(dtype, 3)
    index, table = array(types.int32, 1), array(types.float32, 2)
    for hidden, head_dim, intermediate in ((2048, 64, 8192), (4096, 128, 14336)):
        matrix = array(dtype, 2)
        arguments = (matrix, vector, matrix, types.none, index, index, table, heads, heads, heads, types.float32)
        for target in TARGETS:
            tiling = choose_qkv_tiling(1, hidden, dtype, target)
            kernel = gemv_qkv_kernel(1, hidden, head_dim, dtype, tiling, True)
            qkv = gemv_specimen(f"step/{hidden}/qkv/{tiling.rows}_rows", kernel, arguments, tiling, 24, dtype)
            yield replace(qkv, targets=(target,))
        for name, n, k in (("output", hidden, hidden), ("down", hidden, intermediate)):
            tiling = gemv.choose_tiling(1, n, k)
            kernel = gemv.gemv_kernel(1, k, dtype, tiling, True)
            yield gemv_specimen(f"step/{hidden}/{name}", kernel, gemv_operands(dtype, residual=True), tiling, 24, dtype)
        tiling = gemv.choose_gated_tiling(1, 2 * intermediate, hidden, normed=True)
        kernel = gemv.gemv_kernel(1, hidden, dtype, tiling, True, gated=True)
        yield gemv_specimen(f"step/{hidden}/gate_up", kernel, gemv_operands(dtype, norm=True), tiling, 24, dtype)
        tiling = gemv.choose_tiling(1, 128256, hidden, normed=True)
        kernel = gemv.gemv_kernel(1, hidden, dtype, tiling, True)
        yield gemv_specimen(f"step/{hidden}/head", kernel, gemv_operands(dtype, "float32", norm=True), tiling, 24, dtype)


def gemv_specimen(name, kernel, arguments, tiling, warps, dtype):
    """One specimen, of which `warps` warps should fit on an SM."""
    blocks, threads = warps // tiling.warps, tiling.warps * WARP
    return Specimen(f"matmul/gemv/{name}/{dtype}", kernel, arguments, threads, blocks, contains=STREAMED)


def flat_specimens(dtype):
    """Decoding a batch: the tilings that launchers choose, plain and gated."""
    matrix = array(dtype, 2)
    for gated in (False, True):
        kind = "gated/" if gated else ""
        for tokens, n, blocks in ((8, 4096, 4), (32, 4096, 2), (32, 28672, 2), (64, 4096, 2), (128, 4096, 1)):
            tiling = flat_tiles.choose_tiling(tokens, n, 4096, gated)
            kernel = flat_tiles.flat_tiles_kernel(tokens, tiling, dtype, gated, 8)
            name, arguments = f"matmul/flat/tiles/{kind}{tokens}x{n}/{dtype}", operands(dtype, bias=False)
            contains = ("HMMA.16816.F32*", "LDGSTS.E.BYPASS*128*")
            yield Specimen(name, kernel, arguments, tiling.threads, blocks, tiling.shared_bytes(tokens), contains)
        for tokens, n, k in ((8, 4096, 14336), (32, 28672, 4096), (128, 28672, 4096), (64, 4096, 14336), (256, 6144, 4096)):
            tiling = flat_wgmma_tiling.choose_tiling(tokens, n, k, gated)
            kernel = flat_wgmma.flat_wgmma_kernel(tokens, tiling, dtype, gated, 8)
            arguments = (types.uint64, types.uint64, types.none, types.none, types.none, matrix, types.int32)
            name = f"matmul/flat/wgmma/{kind}{tokens}x{n}x{k}/{dtype}"
            yield Specimen(name, kernel, arguments, tiling.threads, 1, tiling.shared_bytes(tokens), COPY_ENGINE, targets=((9, 0),))
        if dtype != "bfloat16":
            return  # float16 has the same instructions except for one letter
    yield from fixed_order_specimens(dtype)


def fixed_order_specimens(dtype):
    """batch_invariant: the tilings that split K independently of the rows of x, unless flat_specimens has them."""
    matrix = array(dtype, 2)
    for tokens, blocks in ((8, 3), (64, 2), (128, 2)):
        tiling = fixed_order.mma_tiling(tokens)
        kernel = flat_tiles.flat_tiles_kernel(tokens, tiling, dtype, False, 8)
        name, arguments = f"matmul/fixed_order/tiles/{tokens}/{dtype}", operands(dtype, bias=False)
        contains = ("HMMA.16816.F32*", "LDGSTS.E.BYPASS*128*")
        yield Specimen(name, kernel, arguments, tiling.threads, blocks, tiling.shared_bytes(tokens), contains)
    wgmma = [(tokens, n, k, False) for tokens, n, k in ((8, 6144, 4096), (8, 28672, 4096), (256, 2048, 8192), (256, 2048, 2048))]
    for tokens, n, k, gated in (*wgmma, (8, 28672, 4096, True)):
        tiling = fixed_order.wgmma_tiling(tokens, n, k)
        kernel = flat_wgmma.flat_wgmma_kernel(tokens, tiling, dtype, gated, 8)
        arguments = (types.uint64, types.uint64, types.none, types.none, types.none, matrix, types.int32)
        name = f"matmul/fixed_order/wgmma/{'silu/' if gated else ''}{tokens}x{n}x{k}/{dtype}"
        yield Specimen(name, kernel, arguments, tiling.threads, 1, tiling.shared_bytes(tokens), COPY_ENGINE, targets=((9, 0),))


def fused_specimens(dtype):
    """Decoding a batch: flat GEMMs from residual stream to residual stream, with the tilings of 1B and 8B models. Hopper only."""
    matrix, vector, squares = array(dtype, 2), array(dtype, 1), array("float32", 2)
    maps, numbers = (types.uint64, types.uint64), (types.int32, types.int32, types.float32)
    for tokens, hidden, intermediate, head_dim in ((16, 2048, 8192, 64), (64, 4096, 14336, 128)):
        tiling = fused.choose_fused_tiling(tokens, hidden, intermediate)
        kernel, parts = deferred_norm_kernel(tokens, tiling, dtype, False, 0), hidden // tiling.rows
        arguments = (*maps, types.none, types.none, matrix, vector, matrix, matrix, squares, *numbers)
        yield fused_specimen(f"linear_add/{tokens}x{hidden}", kernel, arguments, tokens, tiling, dtype)
        tiling = fused.choose_fused_tiling(tokens, intermediate, hidden, gated=True)
        arguments = (*maps, types.none, squares, types.none, types.none, matrix, types.none, types.none, *numbers)
        kernel = deferred_norm_kernel(tokens, tiling, dtype, True, parts)
        yield fused_specimen(f"gated/{tokens}x{intermediate}", kernel, arguments, tokens, tiling, dtype)
        tiling = fused.choose_fused_tiling(tokens, hidden * 3 // 2, hidden, most_rows=head_dim)
        indices, heads = array(types.int32, 1), array(dtype, 3)
        arguments = (*maps, types.none, squares, indices, indices, squares, heads, heads, heads, *numbers)
        kernel = rope_append_kernel(tokens, tiling, dtype, head_dim, parts)
        yield fused_specimen(f"qkv_rope_append/{tokens}x{hidden}", kernel, arguments, tokens, tiling, dtype)
        if dtype != "bfloat16":
            return  # float16 has the same instructions except for one letter


def fused_specimen(name, kernel, arguments, tokens, tiling, dtype):
    """One specimen; as many blocks as fit with their shared memory."""
    shared_bytes, name = tiling.shared_bytes(tokens), f"matmul/flat/fused/{name}/{dtype}"
    blocks = 228 * 1024 // (shared_bytes + 1024)
    return Specimen(name, kernel, arguments, tiling.threads, blocks, shared_bytes, COPY_ENGINE, targets=((9, 0),))
