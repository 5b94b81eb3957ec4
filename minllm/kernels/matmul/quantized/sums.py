"""Device functions shared by the GEMVs with scales per group: a lane's dot products, and a column's sum."""

import functools

from numba import cuda, float32, int64

from minllm.kernels.vector import vector_access
from minllm.tiles.warp import warp_sum


@functools.cache
def make_add_products(m: int, each: int, dtype: str):
    """add_products(x, first, weight, scale, row, sums), for `m` rows of x.

    sums[i] += scale * (x[i, first : first + each] @ weight); row: scratch for `each` numbers of x.
    """
    width, load, _ = vector_access(dtype)

    @cuda.jit(device=True)
    def add_products(x, first, weight, scale, row, sums):
        for i in range(m):
            part = float32(0)
            for at in range(0, each, width):
                load(x, int64(i) * x.shape[1] + first + at, row, at)
            for j in range(each):
                part += row[j] * weight[j]
            sums[i] += scale * part

    return add_products


@functools.cache
def make_store_column(m: int):
    """store_column(sums, lane, n, bias, out): out[i, n] = sums[i] added over the warp, plus bias[n] if given, for `m` rows."""

    @cuda.jit(device=True)
    def store_column(sums, lane, n, bias, out):
        for i in range(m):
            value = warp_sum(sums[i])
            if lane == 0:
                if bias is not None:
                    value += float32(bias[n])
                out[i, n] = value

    return store_column
