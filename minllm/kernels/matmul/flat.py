"""Launcher (draft)."""
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments
from minllm.kernels.matmul.flat_wgmma import TILE_K, FlatWgmmaTiling, flat_wgmma_kernel
from minllm.kernels.vector import address
from minllm.runtime.kernel import launch
from minllm.runtime.tensor_map import tensor_map


def run_flat(x, weight, out, bias=None, stream=None, tiling=None, gated=False, tokens=None):
    (m, n), k = out.shape, x.shape[1]
    tokens = tokens or -(-m // 8) * 8
    paired = out.dtype == x.dtype and n % 2 == 0 and address(out) % 4 == 0
    columns = tiling.rows // 2 if gated else tiling.rows
    chosen = flat_wgmma_kernel(tokens, tiling, x.dtype.name, gated, paired)
    x_map, weight_map = tensor_map(x, (tokens, TILE_K)), tensor_map(weight, (columns, TILE_K))
    cluster = None if tiling.splits == 1 else (tiling.splits, 1, 1)
    grid = ceil_div(n, columns) * tiling.splits
    launch(chosen, grid, tiling.threads, (x_map, weight_map, bias, out, ceil_div(k, TILE_K)), stream, tiling.shared_bytes(tokens), cluster)
