"""The GEMM and GEMV kernels as they are launched: every tiling, every dtype."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat import fixed_order, flat_wgmma, fused
from minllm.kernels.matmul.flat import tiles as flat_tiles
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma_tiling
from minllm.kernels.matmul.flat.deferred_norm import deferred_norm_kernel
from minllm.kernels.matmul.flat.rope_append import rope_append_kernel
from minllm.kernels.matmul.quantized import specimens as quantized
from minllm.kernels.specimen import Specimen, array
from minllm.machine.numba_cuda import types

COPY_ENGINE = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")


def operands(dtype, out_dtype=None, bias=True):
    """The types of x, weight, bias and out."""
    matrix = array(dtype, 2)
    return matrix, matrix, array(dtype, 1) if bias else types.none, array(out_dtype or dtype, 2)


def specimens():
    """All GEMM and GEMV kernels."""
    for dtype in FLOAT_DTYPES:
        yield from quantized.specimens(dtype.name)
    for dtype in HALF_DTYPES:
        yield from flat_specimens(dtype.name)
        yield from fused_specimens(dtype.name)


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
