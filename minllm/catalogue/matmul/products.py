"""The GEMMs x @ weight.T, plain and gated: x [M, K] and weight [N, K] of b bytes an element, out [M, N]."""

import numpy as np

from minllm.catalogue.launch import Launch, Moved, calls, describes, returns
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.matmul.flat.flat import gated_flat
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.gemv.gemv import gated_gemv
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.matmul.variants import VARIANTS
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply
from minllm.kernels.normalization.rms_norm import rms_norm_reference

GATED = {"wgmma": matmul_silu_and_multiply, "gemv": gated_gemv, "flat": gated_flat}
EPSILON = 1e-5


def matmul_flops(m, n, k):
    """FLOPs of a GEMM: a multiply and an add for each of M N K terms."""
    return 2 * m * n * k


def matmul_bytes(m, n, k, itemsize):
    """Bytes to read each operand once and to write the result."""
    return (m * k + n * k + m * n) * itemsize


def lost(k):
    """What float32 sums of k products lose on a GPU of the largest result: tensor cores cut off bits at each of k / 16 additions."""
    return k / 16 * 2.0**-23


def moved_by(variant, m, n, k, b, options):
    """What the variant moves, if tiles are whole; {} where no formula is given here."""
    plain, maps = dict(x=m * k * b, weight=n * k * b), dict(x_map=m * k * b, weight_map=n * k * b)
    out, work = dict(out=m * n * b), matmul_flops(m, n, k)
    if variant in ("naive", "warp_per_row"):
        operations = work if variant == "naive" else None
        return Moved(dict(x=m * n * k * b, weight=m * n * k * b) | out, plain, operations=operations)
    if variant == "gemv" and options:
        return Moved(dict(x=n // options["tiling"].rows * m * k * b, weight=n * k * b) | out, plain)
    if variant == "flat" and options:
        asked, by_maps = m * k * b * n // options["tiling"].rows, isinstance(options["tiling"], FlatWgmmaTiling)
        inputs = dict(x_map=asked, weight_map=n * k * b) if by_maps else dict(x=asked, weight=n * k * b)
        return Moved(inputs | out, maps if by_maps else plain, work)
    if variant in ("tiled", "vectorized") and options:
        asked = m * n * k // np.ravel(options["tile"])[0] * b
        return Moved(dict(x=asked, weight=asked) | out, plain, operations=work + m * n)  # the bias, 0, is added
    if variant == "tensor_core" and options:
        tiling = options["tiling"]
        asked = dict(x=m * n // tiling.tile_n * k * b, weight=m // tiling.tile_m * n * k * b)
        return Moved(asked | out, plain, work, work + m * n)
    if variant in ("warpgroup", "warp_specialized"):
        tiles = m // 64 * (n // 256)
        return Moved(dict(x_map=tiles * 64 * k * b, weight_map=tiles * 256 * k * b) | out, maps, work)
    if variant == "wgmma" and options:
        tiling = options["tiling"]
        rows = m if tiling.early else tiling.tile_m
        tiles = (1 if tiling.early else m // tiling.tile_m) * (n // tiling.tile_n)
        weight = n * k * b if tiling.early else tiles * tiling.tile_n * k * b // tiling.cluster
        return Moved(dict(x_map=tiles * rows * k * b, weight_map=weight, out_map=m * n * b), maps, work)
    return {}


@describes
def product(variant, m, n, k, dtype=BFLOAT16, out_dtype=None, bias=False, residual=False, norm=False, exact=False, **options):
    """x @ weight.T + bias + residual by one variant; options: those of its launcher.

    bias: True, or its dtype if that is not the output's. norm: of the RMSNorm of x. exact: of whole numbers.
    """
    result, options = out_dtype or dtype, {name: one for name, one in options.items() if one is not None}

    def arrays(noise):
        make = noise.whole_numbers if exact else noise.array
        given = dict(x=make((m, k), dtype), weight=make((n, k), dtype)) | dict(out=noise.unwritten((m, n), result))
        given |= dict(bias=make((n,), result if bias is True else bias)) if bias else {}
        given |= dict(norm=make((k,), dtype)) if norm else {}
        return given | (dict(residual=make((m, n), result)) if residual else {})

    def reference(x, weight, bias=None, residual=None, norm=None):
        total = matmul_reference(normed(x, norm), weight, bias, np.float32)
        return (total if residual is None else total + residual.astype(np.float32)).astype(result)

    constants = options | (dict(epsilon=EPSILON) if norm else {})
    return Launch(
        arrays,
        call=lambda ops, **arrays: VARIANTS[variant](**arrays, **constants, stream=ops.stream),
        reference=returns(("out",), reference),
        moved={} if norm else moved_by(variant, m, n, k, dtype.itemsize, options),
        rows=("x", "residual", "out"),
        exact=exact,
        lost=lost(k),
    )


def normed(x, norm):
    """The RMSNorm of x in float32; x itself if norm is None."""
    return x if norm is None else rms_norm_reference(x.astype(np.float32), norm, EPSILON)[0]


@describes
def gated_product(variant, m, n, k, dtype=BFLOAT16, norm=False, exact=False, **options):
    """silu(x @ gate.T) * (x @ up.T) by one variant: gate and up of n rows each.

    norm: of the RMSNorm of x. exact: of whole numbers, and gates of K, whose sigmoid is 1 however it is computed.
    """

    def arrays(noise):
        given = dict(x=noise.array((m, k), dtype), gate_up=noise.array((2 * n, k), dtype), out=noise.unwritten((m, n), dtype))
        if exact:
            gate = np.ones((n, k), dtype)
            given |= dict(x=np.ones((m, k), dtype), gate_up=np.concatenate([gate, noise.whole_numbers((n, k), dtype)]))
        return given | (dict(norm=noise.array((k,), dtype)) if norm else {})

    def reference(x, gate_up, norm=None):
        return silu_and_multiply_reference(matmul_reference(normed(x, norm), gate_up, out_dtype=np.float32)).astype(dtype)

    call = calls(GATED[variant], **options, **(dict(epsilon=EPSILON) if norm else {}))
    moved = gated_wgmma_moved(m, n, k, dtype.itemsize, options["tiling"]) if exact and variant == "wgmma" else {}
    return Launch(arrays, call, returns(("out",), reference), moved, rows=("x", "out"), exact=exact, lost=lost(k))


def gated_wgmma_moved(m, n, k, b, tiling):
    """What wgmma moves of gate and up, if tiles are whole."""
    tiles = m // tiling.tile_m * (2 * n // tiling.tile_n)
    asked = dict(x_map=tiles * tiling.tile_m * k * b, weight_map=tiles * tiling.tile_n * k * b, out_map=m * n * b)
    return Moved(asked, dict(x_map=m * k * b), 2 * matmul_flops(m, n, k))
