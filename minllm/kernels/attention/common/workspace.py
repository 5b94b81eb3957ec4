"""Scratch memory of attention launchers. They never allocate on a device, because CUDA graph capture forbids it.

The function `workspace_shapes(query, key_cache, block_tables, ...)` of each variant lists the scratch it needs, a dictionary of name ->
(shape, dtype), empty if it needs none; it depends only on the shapes of its arguments. The caller allocates one array per name and passes
the dictionary as `workspace`. Floats may have any value, and their memory may be used for something else between calls. Counts (int32) must
be zeros before the first call, as from make_workspace(...), and every call leaves them zeros. Without a workspace a launcher allocates
NumPy scratch in the simulator, and raises an error on a GPU.
"""

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.arguments import dtype_name
from minllm.runtime.kernel import check


def scratch_arrays(workspace, shapes, query):
    """The arrays named in `shapes`: the caller's, checked; without a workspace, in the simulator only, new NumPy arrays full of NaN.

    Raises KernelArgumentError if the workspace is missing on a GPU, or an array is missing or has another shape or dtype.
    """
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
    """An array per name in `shapes`: zeros(shape, dtype) for int32, the counts, and empty(shape, dtype) for all others."""
    return {name: (zeros if dtype == "int32" else empty)(shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()}
