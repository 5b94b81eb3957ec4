"""Checks of the arrays passed to launchers: rank, sizes by axis name, dtype, contiguity."""

import functools

import ml_dtypes
import numpy as np

from minllm.runtime.kernel import check

FLOAT_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
INDEX_DTYPES = (np.dtype(np.int32),)


@functools.cache
def dtype_name(dtype):
    """str(dtype), cached: NumPy takes 2 to 4 microseconds to compute it, and launchers need it many times."""
    return str(dtype)


def check_array(name, array, dtypes, /, gaps=False, **axes):
    """Raise KernelArgumentError unless `array` has one of `dtypes` and the named sizes, and is C-contiguous or `gaps` is true.

    A size of None allows any size.

    check_array("weight", weight, (x.dtype,), hidden=64) accepts an array of shape (64,) in the dtype of x.
    """
    fits = len(array.shape) == len(axes) and all(size in (None, extent) for extent, size in zip(array.shape, axes.values(), strict=True))
    contiguous = gaps or is_contiguous(array)
    if fits and contiguous and array.dtype in dtypes:
        return  # launches are frequent: messages are formatted only on errors
    given = f"{name} is {array.dtype} {list(array.shape)}"
    wanted = f"[{', '.join(axis if size is None else f'{axis}={size}' for axis, size in axes.items())}]"
    check(fits, f"{given}; its shape must be {wanted}")
    check(array.dtype in dtypes, f"{given}; its dtype must be {' or '.join(dtype.name for dtype in dtypes)}: convert it first")
    check(contiguous, f"{given} with strides; kernels take C-contiguous arrays: pass numpy.ascontiguousarray({name})")


def is_contiguous(array):
    """Whether a NumPy array or DeviceArray is C-contiguous."""
    return array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous


def check_layout(name, cache):
    """Raise KernelArgumentError unless each token of a cache is contiguous and tokens lie at equal distances (kv/layout.py)."""
    if is_contiguous(cache):
        return
    (num_blocks, block_size, kv_heads, head_dim), strides = cache.shape, cache.strides
    itemsize = cache.dtype.itemsize
    row_bytes = kv_heads * head_dim * itemsize
    whole = (head_dim == 1 or strides[3] == itemsize) and (kv_heads == 1 or strides[2] == head_dim * itemsize)
    even = strides[1] >= row_bytes and strides[1] % itemsize == 0 and (num_blocks == 1 or strides[0] == block_size * strides[1])
    check(
        whole and even,
        f"{name} {list(cache.shape)} has strides {cache.strides} (bytes): the {row_bytes} bytes of a token must lie side by side, "
        "and tokens at equal distances, also from one block to the next",
    )


def ceil_div(a, b):
    """a / b, rounded up."""
    return -(-a // b)


def address(array):
    """The address of the first element, on the host or the device."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.pointer


def rows_begin_on(byte_count, *arrays):
    """Whether each row of C-contiguous arrays begins at a multiple of `byte_count` bytes; False for rows without elements.

    A vector is a single row; None, for an absent array, is left out.
    """
    row_bytes = [(array.shape[-1] * array.dtype.itemsize, address(array)) for array in arrays if array is not None]
    return all(row > 0 and row % byte_count == at % byte_count == 0 for row, at in row_bytes)
