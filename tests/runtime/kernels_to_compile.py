"""Kernels for tests of compile_ahead.py, listed as its workers list them: by a function of a module."""

import os
import time

from numba import cuda, float32
from numba.cuda import types

from minllm.runtime.dry_run import Signature
from minllm.runtime.kernel import kernel

ARRAY = types.Array(types.float32, 1, "C")


def make_scale(factor):
    def scale(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * float32(factor)

    scale.__module__ = "minllm.kernels.made_for_this_test"  # kernels of other packages are not cached
    return kernel(scale)


def scales(count):
    """Kernels that compile."""
    return [Signature(make_scale(factor), (ARRAY, ARRAY)) for factor in range(count)]


def one_of_them_is_wrong(count):
    """The same, and one that does not compile."""
    return [Signature(make_scale("a word"), (ARRAY, ARRAY)), *scales(count)]


def is_worker():
    """Whether this is a worker process, which sees no GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") == ""


def fails_in_workers(count):
    """Kernels that only the starting process finds."""
    if is_worker():
        raise LookupError("nothing is found here")
    return scales(count)


def takes_forever_in_workers(count):
    """Kernels that workers search and do not find."""
    if is_worker():
        time.sleep(600)
    return scales(count)
