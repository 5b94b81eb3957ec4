"""Specimens of attention with a soft cap: on tensor cores, and in float32; with Gemma 2's scale and cap."""

from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, NO_LSE, NO_SCALES, TENSOR_CORES, inputs
from minllm.kernels.attention.soft_capped.soft_capped import make_kernel
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array


def specimens():
    """All kernels with a soft cap."""
    for dtype in (*(one.name for one in HALF_DTYPES), "float32"):
        for head_dim in (128, 256):
            kernel, tiles = make_kernel(dtype, head_dim, BLOCK_SIZE, 256**-0.5, 50.0)
            query, key_cache, value_cache = inputs(dtype)
            arguments = (query, key_cache, NO_SCALES, value_cache, NO_SCALES, array(dtype, 3), NO_LSE, *BATCH, FLOAT32, INT32)
            contains, blocks = (("LDG*128*", "MUFU.EX2"), 1) if dtype == "float32" else (TENSOR_CORES, tiles.launch_bounds[1])
            name = f"attention/soft_capped/{head_dim}/{dtype}"
            yield Specimen(name, kernel, arguments, tiles.threads, blocks, tiles.shared_bytes, contains)
