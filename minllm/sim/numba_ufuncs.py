"""`numba.cuda.vectorize` and `guvectorize` with simulated kernels.

Numba generates a kernel around the given function, and launches it for arrays that it has broadcast. Here that kernel is simulated; only
its compilation and the functions that access device memory are replaced.
"""

import linecache

import numpy as np
from numba.cuda import deviceufunc, vectorizers
from numba.cuda.decorators import jit
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from minllm.sim.typing.functions import infer_kernel


def execute(source, namespace):
    """`exec` for a kernel that Numba generates; its source goes into linecache, where the simulator finds it."""
    name = f"<kernel of a ufunc {len(linecache.cache)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), namespace)


def compile_core(self, signature):
    """(device function of a ufunc, Numba type of its result)."""
    result = signature.return_type
    if result is None:
        result = infer_kernel(self.pyfunc, signature.args).result.type
    return jit(device=True)(self.pyfunc), result


def broadcast(self, array, shape):
    """A device array broadcast to another shape."""
    return FakeCUDAArray(np.broadcast_to(array._ary, shape))


REPLACED = [
    (deviceufunc, "exec", execute),
    (vectorizers.CUDAVectorize, "_compile_core", compile_core),
    (vectorizers.CUDAUFuncMechanism, "broadcast_device", broadcast),
    (vectorizers.CUDAGeneralizedUFunc, "_broadcast_scalar_input", broadcast),
    (vectorizers.CUDAGeneralizedUFunc, "_broadcast_add_axis", broadcast),
]
