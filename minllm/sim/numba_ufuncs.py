"""`numba.cuda.vectorize` and `guvectorize` with simulated kernels.

Numba writes a kernel around the function that is given, and calls the kernel for arrays that it has broadcast. Here that kernel is
simulated; only its compilation and what looks at memory of a device are replaced.
"""

import linecache

import numpy as np
from numba.cuda import deviceufunc, vectorizers
from numba.cuda.decorators import jit
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from minllm.sim.typing.functions import infer_kernel


def execute(source, namespace):
    """`exec` for the kernel that Numba writes, with its source where the simulator finds it."""
    name = f"<kernel of a ufunc {len(linecache.cache)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), namespace)


def compile_core(self, signature):
    """(the device function of a ufunc, the type of its result)."""
    result = signature.return_type
    if result is None:
        result = infer_kernel(self.pyfunc, signature.args).result.type
    return jit(device=True)(self.pyfunc), result


def broadcast(self, array, shape):
    """A device array in another shape."""
    return FakeCUDAArray(np.broadcast_to(array._ary, shape))


REPLACED = [
    (deviceufunc, "exec", execute),
    (vectorizers.CUDAVectorize, "_compile_core", compile_core),
    (vectorizers.CUDAUFuncMechanism, "broadcast_device", broadcast),
    (vectorizers.CUDAGeneralizedUFunc, "_broadcast_scalar_input", broadcast),
    (vectorizers.CUDAGeneralizedUFunc, "_broadcast_add_axis", broadcast),
]
