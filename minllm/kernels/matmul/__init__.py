"""The matrix product of every linear layer: its equation and a ladder of kernels, from one thread per output to tensor cores.

    reference     the equation in NumPy
    naive         one thread per output element
    tiled         tiles in shared memory, a block of outputs in each thread's registers
    vectorized    the same with 128-bit loads, and the next tile on its way
    tensor_core   mma.sync fed by asynchronous copies: half precision, many rows
    wgmma         Hopper's TMA and tensor cores beside the threads, with fused epilogues
    gemv          up to 8 rows, at the speed of memory: decoding
    flat          up to 256 rows, with tensor cores at the speed of memory: decoding a batch

All variants are called alike, `VARIANTS[name](x, weight, out, bias=None, stream=None)`, and compute out [M, N] = x [M, K] @ weight [N,
K].T + bias [N] with float32 sums. variants.py is their table; `matmul` and choice.py choose one by shape, and by what was measured on the
GPU (dataflow.py).
"""

from minllm.kernels.matmul.variants import VARIANTS

__all__ = ["VARIANTS"]
