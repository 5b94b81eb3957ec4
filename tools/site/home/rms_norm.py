import math

from numba import cuda, float32

from minllm.runtime.kernel import kernel


@kernel
def rms_norm(x, weight, out):  # x, out: [rows, 128]; weight: [128]
    row, i = cuda.blockIdx.x, cuda.threadIdx.x
    squares = cuda.shared.array(128, float32)
    squares[i] = x[row, i] * x[row, i]
    cuda.syncthreads()
    step = 64
    while step > 0:  # a tree of additions in shared memory
        if i < step:
            squares[i] += squares[i + step]
        cuda.syncthreads()
        step //= 2
    out[row, i] = x[row, i] * weight[i] / math.sqrt(squares[0] / 128 + 1e-5)
