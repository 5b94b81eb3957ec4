import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def rms_norm(x, weight, out):  # [rows, 128], [128], [rows, 128]
    row, i = cuda.blockIdx.x, cuda.threadIdx.x
    squares = cuda.shared.array(128, float32)
    squares[i] = x[row, i] * x[row, i]
    cuda.syncthreads()
    for step in (64, 32, 16, 8, 4, 2, 1):  # a tree of additions
        if i < step:
            squares[i] += squares[i + step]
        cuda.syncthreads()
    scale = math.sqrt(squares[0] / 128 + 1e-5)
    out[row, i] = x[row, i] * weight[i] / scale
