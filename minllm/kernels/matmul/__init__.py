"""GEMM, the matrix product of every linear layer: its equation and a ladder of kernels, from one thread per output to tensor cores.

    reference         the equation in NumPy
    naive             one thread per output element
    tiled             tiles in shared memory, a block of outputs in each thread's registers
    vectorized        the same with 128-bit loads, and the next tile in flight
    tensor_core       mma.sync fed by asynchronous copies: half precision, many rows
    warpgroup         Hopper: one warpgroup loads a tile by TMA, multiplies it with wgmma, and begins again
    warp_specialized  the same with a producer warp, a consumer warpgroup, and a ring of stages between them
    wgmma             Hopper: TMA and tensor cores driven by specialised warps, with fused epilogues
    gemv              up to 8 rows, memory-bound: decoding
    flat              up to 256 rows, memory-bound, on tensor cores: decoding a batch

All variants have one signature, `VARIANTS[name](x, weight, out, bias=None, stream=None)`, and compute out [M, N] = x [M, K] @ weight [N,
K].T + bias [N] with float32 sums. variants.py is their table; choice.py chooses one by shape, from measurements on the GPU (dataflow.py).
"""

from minllm.kernels.matmul.variants import VARIANTS

__all__ = ["VARIANTS"]
