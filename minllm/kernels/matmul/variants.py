"""The table of GEMM variants: each line registers one (minllm/kernels/variants.py), and choice.py chooses among them.

If a variant cannot serve x and weight, because their rows do not fit its 16-byte loads, its fallback serves the call.
"""

import functools
from collections.abc import Callable

from minllm.kernels.matmul.arguments import MOST_ROWS_OF_FLAT, MOST_ROWS_OF_GEMV
from minllm.kernels.variants import HALF_DTYPES as HALF
from minllm.kernels.variants import Variant, Variants
from minllm.runtime.device import HOPPER


class Gemms(Variants):
    """A table of launchers that pass x and weight that they cannot serve (why_not of their module) to their fallback."""

    def __getitem__(self, name: str) -> Callable:
        launcher, found, why_not = super().__getitem__(name), self.entry(name), getattr(self.module(name), "why_not", None)
        if not found.fallback or why_not is None:
            return launcher

        @functools.wraps(launcher)
        def launch(x, weight, out, bias=None, stream=None, **options):
            # A tiling is the variant's own; other options are part of the call, and only the variant has them.
            if options.keys() - {"tiling"} or why_not(x, weight) is None or not found.takes_rows(x.shape[0]):
                launcher(x, weight, out, bias, stream, **options)
            else:
                self.fallback(name)(x, weight, out, bias, stream)

        return launch


VARIANTS = Gemms(
    "minllm.kernels.matmul",
    Variant("naive", ".ladder.naive", "matmul_naive"),
    Variant("tiled", ".ladder.tiled", "matmul_tiled"),
    Variant("vectorized", ".vectorized", "matmul_vectorized"),
    Variant("tensor_core", ".tensor_core", "matmul_tensor_core", dtypes=HALF),
    Variant("warpgroup", ".ladder.warpgroup", "matmul_warpgroup", dtypes=HALF, capability=HOPPER, fallback="tensor_core"),
    Variant(
        "warp_specialized", ".ladder.warp_specialized", "matmul_warp_specialized", dtypes=HALF, capability=HOPPER, fallback="tensor_core"
    ),
    Variant("wgmma", ".wgmma.wgmma", "matmul_wgmma", dtypes=HALF, capability=HOPPER, fallback="tensor_core"),
    Variant("warp_per_row", ".ladder.warp_per_row", "matmul_warp_per_row", most_rows=MOST_ROWS_OF_GEMV),
    Variant("gemv", ".gemv.gemv", "matmul_gemv", most_rows=MOST_ROWS_OF_GEMV),
    Variant("flat", ".flat.flat", "matmul_flat", most_rows=MOST_ROWS_OF_FLAT, dtypes=HALF, fallback="tensor_core"),
    Variant("fixed_order", ".flat.fixed_order", "matmul_fixed_order", fallback="tensor_core"),  # batch_invariant=True
)
