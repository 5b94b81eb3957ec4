"""The table of GEMM variants: each line registers one (minllm/kernels/variants.py), and choice.py chooses among them.

If the rows of x and weight do not fit a variant's 16-byte loads, its fallback serves the call.
"""

from minllm.kernels.matmul.arguments import MOST_ROWS_OF_FLAT, MOST_ROWS_OF_GEMV
from minllm.kernels.variants import HALF_DTYPES as HALF
from minllm.kernels.variants import Variant, Variants
from minllm.runtime.device import HOPPER

VARIANTS = Variants(
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
