"""The race of GEMMs: matmul(x, weight, out)."""

import numpy as np

from minllm.catalogue.matmul.products import matmul_flops
from minllm.course.race.contest import Case, Contest, in_float64
from minllm.kernels.matmul.variants import VARIANTS

LADDER = ("naive", "tiled", "vectorized", "tensor_core", "warpgroup", "warp_specialized", "wgmma", "gemv")


def inputs(size, dtype, noise, spread):
    """x [M, K] and weight [N, K]."""
    m, n, k = size
    return dict(x=noise.array((m, k), dtype, spread), weight=noise.array((n, k), dtype, spread))


def reference(arrays):
    """x @ weight.T, float32 [M, N]."""
    x, weight = (np.asarray(array).astype(np.float32) for array in arrays.values())
    return x @ weight.T


def suspects(arrays):
    """Results of likely mistakes."""
    x, weight = in_float64(arrays)
    if x.shape[1] == weight.shape[0]:
        yield "weight is [N, K], one row per output: read weight[n, k], not weight[k, n].", x @ weight
    yield "the last term of each sum is missing: k runs up to x.shape[1].", x[:, :-1] @ weight[:, :-1].T


def launcher(name, arrays, ops):
    """A call that launches one rung of the ladder."""
    return lambda: VARIANTS[name](arrays["x"], arrays["weight"], arrays["out"], stream=ops.stream)


MATMUL = Contest(
    name="matmul",
    equation="out = x @ weight.T",
    parameters=dict(x="[M, K]", weight="[N, K]", out="[M, N]"),
    axes=("row", "column"),
    size_names=("M", "N", "K"),
    cases=(
        Case("one element", "a single product.", (1, 1, 1)),
        Case("16 x 16, K = 16", "one whole block of 16 x 16 threads.", (16, 16, 16)),
        Case("3 x 5, K = 7", "matrices smaller than a block: threads beyond the edge must do nothing.", (3, 5, 7)),
        Case("33 x 17, K = 50", "nothing is a multiple of a tile.", (33, 17, 50)),
        Case("one row, K = 65", "a GEMV: M = 1.", (1, 70, 65)),
        Case("one column", "N = 1.", (40, 1, 19)),
    ),
    traced_size=(32, 32, 16),
    raced_size=(2048, 2048, 2048),
    inputs=inputs,
    out_shape=lambda arrays: (arrays["x"].shape[0], arrays["weight"].shape[0]),
    reference=reference,
    suspects=suspects,
    flops=lambda size: matmul_flops(*size),
    rivals=LADDER,
    why_not=lambda name, size, dtype, capability: VARIANTS.why_not(name, size[0], dtype, capability),
    launcher=launcher,
    peers=lambda dtype: ("cuBLAS",),
    peer_inputs=lambda arrays, ops: dict(arrays),
)
