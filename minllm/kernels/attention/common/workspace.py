"""Scratch memory of attention launchers, which never allocate on a device: a CUDA graph that is captured may not allocate.

Each variant says what scratch it needs with `workspace_shapes(query, key_cache, block_tables, ...)`, a dictionary of name -> (shape,
dtype), empty if it needs none; it looks at the shapes of its arguments alone. The caller allocates one array per name and passes the
dictionary as `workspace`. Floats may have any value, and may be used for something else between calls; counts (int32) are zeros before the
first call, and every call leaves them zeros: make_workspace(...) makes them so. Without a workspace a launcher makes NumPy scratch when it
runs in the simulator, and raises an error on a GPU.
"""

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.arguments import dtype_name
from minllm.runtime.kernel import check


def scratch_arrays(workspace, shapes, query):
    """The arrays named in `shapes`: the caller's, checked; in the simulator, where the caller gave none, fresh NumPy arrays full of NaN."""
    if workspace is None:
        missing = "attention was called on a GPU without its workspace; allocate what workspace_shapes(...) lists: "
        check(isinstance(query, np.ndarray) or not shapes, missing + ", ".join(shapes))
        return make_workspace(shapes, lambda shape, dtype: np.full(shape, np.nan, dtype), np.zeros)
    for name, (shape, dtype) in shapes.items():
        check(name in workspace, f"the workspace lacks {name!r}; workspace_shapes(...) lists what it must hold")
        array = workspace[name]
        if tuple(array.shape) != tuple(shape) or dtype_name(array.dtype) != dtype_name(np.dtype(dtype)):
            needs = f"{np.dtype(dtype).name} {tuple(shape)}"
            raise KernelArgumentError(f"workspace {name!r} is {array.dtype} {array.shape}; this call needs {needs}")
    return workspace


def make_workspace(shapes, empty, zeros):
    """An array for each name in `shapes`: zeros(shape, dtype) for counts, which must begin as zeros, empty(shape, dtype) for all others."""
    return {name: (zeros if dtype == "int32" else empty)(shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()}
