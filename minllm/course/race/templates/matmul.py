"""out = x @ weight.T: check, trace and race it with `minllm race matmul.py`."""

from numba import cuda, float32


@cuda.jit
def matmul_kernel(x, weight, out):  # x [M, K], weight [N, K], out [M, N]
    n, m = cuda.grid(2)  # one thread per output
    if m < out.shape[0] and n < out.shape[1]:
        total = float32(0)
        for k in range(x.shape[1]):
            total += float32(x[m, k]) * float32(weight[n, k])
        out[m, n] = total


def matmul(x, weight, out):
    """Launch the kernel; x, weight and out are device arrays."""
    block = 16, 16
    grid = -(-out.shape[1] // block[0]), -(-out.shape[0] // block[1])
    matmul_kernel[grid, block](x, weight, out)
