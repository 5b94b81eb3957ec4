"""A matrix copied twice: with the lanes of a warp along its rows, and with the lanes down its columns.

    out = x          [rows, columns], row after row in memory

Both kernels read every element once and write it once, one thread per element, and do no arithmetic. They differ in which thread takes
which element. In `copy_by_rows` neighbouring threads take neighbouring columns, so that a warp's 32 float32 are 128 contiguous bytes: 4
sectors. In `copy_by_columns` they take neighbouring rows, each a whole row of memory away from the next: 32 sectors for the same 128 bytes.
Source: NVIDIA, "CUDA C++ Best Practices Guide", section "Coalesced Access to Global Memory".
"""

from numba import cuda

from minllm.kernels.arguments import ceil_div
from minllm.runtime.kernel import kernel, launch

BLOCK = 128


@kernel
def copy_by_rows(x, out):
    """x, out [rows, columns]; grid (rows, columns / BLOCK): a block copies a piece of a row."""
    row = cuda.blockIdx.x
    column = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
    if column < x.shape[1]:
        out[row, column] = x[row, column]


@kernel
def copy_by_columns(x, out):
    """x, out [rows, columns]; grid (columns, rows / BLOCK): a block copies a piece of a column."""
    column = cuda.blockIdx.x
    row = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
    if row < x.shape[0]:
        out[row, column] = x[row, column]


def copy(x, out, by_columns=False, stream=None):
    """Write x [rows, columns] into out of the same shape, with warps along the rows or down the columns."""
    rows, columns = x.shape
    if by_columns:
        launch(copy_by_columns, (columns, ceil_div(rows, BLOCK)), BLOCK, (x, out), stream)
    else:
        launch(copy_by_rows, (rows, ceil_div(columns, BLOCK)), BLOCK, (x, out), stream)
