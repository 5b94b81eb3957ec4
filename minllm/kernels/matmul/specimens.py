"""The GEMM and GEMV kernels as they are launched: every tiling, every dtype."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.deferred_norm import deferred_norm_kernel
from minllm.kernels.matmul.flat.rope_append import rope_append_kernel
from minllm.kernels.matmul.quantized import specimens as quantized
from minllm.kernels.specimen import Specimen, array
from minllm.machine.numba_cuda import types

COPY_ENGINE = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*")


def specimens():
    """All GEMM and GEMV kernels."""
    for dtype in FLOAT_DTYPES:
        yield from quantized.specimens(dtype.name)
    for dtype in HALF_DTYPES:
        yield from fused_specimens(dtype.name)


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
