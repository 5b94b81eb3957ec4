"""GEMM, the matrix product of every linear layer: its equation and a ladder of kernels, from one thread per output to tensor cores.

Those in ladder/ are for lessons: no engine launches them unless it is asked to.

    reference                the equation in NumPy
    ladder/naive             one thread per output element
    ladder/tiled             tiles in shared memory, a block of outputs in each thread's registers
    vectorized               the same with 128-bit loads, and the next tile in flight: float32
    tensor_core              mma.sync fed by asynchronous copies: half precision, many rows
    ladder/warpgroup         Hopper: one warpgroup loads a tile by TMA, multiplies it with wgmma, and begins again
    ladder/warp_specialized  the same with a producer warp, a consumer warpgroup, and a ring of stages between them
    wgmma                    Hopper: TMA and tensor cores driven by specialised warps, with fused epilogues
    ladder/warp_per_row      up to 8 rows, a warp per output
    gemv                     up to 8 rows, memory-bound: decoding
    flat                     up to 256 rows, memory-bound, on tensor cores: decoding a batch

All variants have one signature, `VARIANTS[name](x, weight, out, bias=None, stream=None)`, and compute out [M, N] = x [M, K] @ weight [N,
K].T + bias [N] with float32 sums. variants.py is their table; choice.py chooses one by shape, from measurements on the GPU (dataflow.py).
"""

from minllm.kernels.matmul.variants import VARIANTS

__all__ = ["VARIANTS"]
