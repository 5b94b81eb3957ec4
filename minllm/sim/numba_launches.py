"""Simulate every launch of a `@cuda.jit` kernel, for programs that are written for numba.cuda and do not import minllm.

    with simulated_launches():
        kernel[grid, block](x, out)             # x: a NumPy array, or from cuda.to_device

Within the context numba.cuda needs no GPU: kernels are not compiled but simulated, and the arrays of cuda.to_device and cuda.device_array
are those of Numba's own simulator, which hold NumPy arrays. `python -m minllm.sim script.py` runs a whole script in this context,
`pytest --minllm-sim` the tests of a project.
"""

import contextlib
from types import SimpleNamespace

import minllm.machine.numba_cuda  # noqa: F401  # isort: skip  # first: it turns Numba's own simulator off
import numba.cuda
import numpy as np
from numba.cuda import dispatcher
from numba.cuda.cudadrv import devicearray as numba_devicearray
from numba.cuda.cudadrv import devices as numba_devices
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.memory_management import nrt
from numba.cuda.simulator import api
from numba.cuda.simulator.cudadrv import devicearray, devices
from numba.cuda.simulator.memory_management import nrt as simulated_nrt
from numba.cuda.simulator.reduction import Reduce

from minllm.sim import host, numba_arrays, numba_ufuncs, rewrite
from minllm.sim.compiled_overloads import forget, note
from minllm.sim.detectors import detecting
from minllm.sim.detectors.streams import new_order, order
from minllm.sim.host_memory import HostArray
from minllm.sim.numba_arrays import host_array
from minllm.sim.numba_cuda_mlir import HOST_NAMES, host_side, numba_type, signature_of_numba_cuda
from minllm.sim.signatures import remember_signature, signature_for
from minllm.sim.simulator import simulate
from minllm.sim.typing.rules import argument_type

COMPUTE_CAPABILITY = 9, 0
THREADS = 128  # threads per block of `kernel.forall`; on a GPU the driver chooses this number
OF_API = (
    *("select_device", "synchronize", "close", "detect", "list_devices", "get_current_device", "defer_cleanup"),
    *("is_float16_supported", "gpus"),
)
OF_ARRAYS = (
    *("to_device", "device_array", "device_array_like", "pinned_array", "pinned_array_like", "mapped_array"),
    "managed_array",
)

launches = []  # functions called with the dispatcher at every simulated launch


class Launch:
    """A dispatcher with its launch configuration: call it with the arguments."""

    def __init__(self, kernel, grid, block, stream=0, shared_bytes=0, cluster=None):
        self.griddim, self.blockdim = normalize_kernel_dimensions(grid, block)
        self.dispatcher, self.stream, self.sharedmem, self.cluster = kernel, stream, shared_bytes, cluster
        self.pre_launch_callbacks = []

    def __call__(self, *arguments):
        for listener in launches:
            listener(self.dispatcher)
        arguments = bound(self.dispatcher, arguments)
        for extension in reversed(self.dispatcher.extensions):
            arguments = [extension.prepare_args(argument_type(one), one, stream=0, retr=[])[1] for one in arguments]
        hosts = [host_array(argument) for argument in arguments]
        declared = signature_for(self.dispatcher, hosts)
        note(self.dispatcher, declared or tuple(map(argument_type, hosts)))
        how = dict(shared_bytes=self.sharedmem, types=declared, cluster=self.cluster)
        shared = [not isinstance(one, np.ndarray) or isinstance(one, HostArray) for one in arguments]
        with order().launch(self.dispatcher.py_func.__name__, self.stream, hosts, shared):
            simulate(self.dispatcher, self.griddim, self.blockdim, *hosts, **how)


def bound(kernel, arguments):
    """The arguments with the kernel's defaults appended. Raises TypeError if their number is wrong."""
    missing = kernel.py_func.__code__.co_argcount - len(arguments)
    defaults = kernel.py_func.__defaults__ or ()
    if missing and not 0 < missing <= len(defaults):
        count = kernel.py_func.__code__.co_argcount
        if not kernel.py_func.__code__.co_flags & 4:  # without *args
            raise TypeError(f"{kernel.py_func.__name__} takes {count} arguments, given {len(arguments)}")
    return [*arguments, *(defaults[len(defaults) - missing :] if missing > 0 else ())]


def configure(kernel, grid, block, stream=0, sharedmem=0, cluster=None):
    """`kernel[grid, block, stream, sharedmem]` of a simulated kernel.

    Raises RuntimeError for a device function, TypeError for something else in the stream's place.
    """
    if kernel.targetoptions.get("device"):
        raise RuntimeError("Cannot compile a device function as a kernel")
    host.check_stream(stream)
    return Launch(kernel, grid, block, stream, sharedmem, cluster)


def launch_for_all(self, *arguments):
    """`kernel.forall(tasks)(*arguments)`."""
    if self.ntasks:
        threads = self.thread_per_block or THREADS
        Launch(self.dispatcher, -(-self.ntasks // threads), threads, 0, self.sharedmem)(*arguments)


class Allocations(type(simulated_nrt.rtsys)):
    """Numba's allocator inside kernels, which the simulator does not need."""

    def memsys_disable_stats(self, *stream):
        pass

    def get_allocation_stats(self, *stream):
        return SimpleNamespace(alloc=0, free=0, mi_alloc=0, mi_free=0)


class Runtime:
    """The source of numba.cuda's context, for simulated launches."""

    ensure_context = contextlib.nullcontext

    @staticmethod
    def get_or_create_context(number):
        return devices.get_context(number)


@contextlib.contextmanager
def simulated_launches(detect=True):
    """Within this context launches of `@cuda.jit` kernels run in the simulator, with all detectors if `detect`."""
    kernels = dispatcher.CUDADispatcher
    with contextlib.ExitStack() as stack:
        stack.enter_context(detecting(detect))
        stack.enter_context(new_order())
        stack.callback(forget)

        of_cuda = []

        def replace(owner, name, value):
            if owner is numba.cuda:
                of_cuda.append(name)
            if name in vars(owner):
                stack.callback(setattr, owner, name, getattr(owner, name))
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, value)

        replace(kernels, "configure", configure)
        replace(kernels, "compile", lambda kernel, signature: note(kernel, remember_signature(kernel, signature)))
        replace(kernels, "compile_device", remember_signature)
        replace(kernels, "disable_compile", lambda kernel, disabled=True: None)
        replace(kernels, "specialize", lambda kernel, *arguments: kernel)
        replace(dispatcher, "get_current_device", api.get_current_device)
        replace(dispatcher.ForAll, "__call__", launch_for_all)
        for name in OF_API:
            replace(numba.cuda, name, getattr(api, name))
        for owner, name, value in (*numba_arrays.REPLACED, *numba_ufuncs.REPLACED, *host.REPLACED):
            replace(owner, name, value)
        for name in OF_ARRAYS:
            replace(numba.cuda, name, getattr(devicearray, name))
        replace(numba.cuda, "current_context", devices.get_context)
        replace(numba.cuda, "is_available", lambda: True)
        replace(numba.cuda, "as_cuda_array", numba_arrays.as_cuda_array)
        replace(numba.cuda, "is_cuda_array", numba_arrays.is_cuda_array)
        replace(numba.cuda, "is_bfloat16_supported", lambda: True)
        replace(numba.cuda, "_auto_device", devicearray.auto_device)
        for name in ("reduce", "Reduce"):
            replace(numba.cuda, name, Reduce)
        replace(devices, "_SIMULATOR_CC", COMPUTE_CAPABILITY)
        replace(numba_devices, "get_context", devices.get_context)
        replace(numba_devices, "_runtime", Runtime)
        replace(rewrite, "captured_array", host_array)
        replace(nrt, "rtsys", Allocations())
        replace(numba_devicearray, "is_cuda_ndarray", devicearray.is_cuda_ndarray)
        if (other := host_side()) is not None:
            simulate_launches_of(*other, replace, of_cuda)
        yield


def simulate_launches_of(modules, descriptor, replace, names):
    """Simulate the launches of numba-cuda-mlir too. modules: those like numba.cuda, in which `names` have been replaced."""
    kernels = descriptor.MLIRDispatcher
    replace(kernels, "configure", configure)
    replace(kernels, "compile", lambda kernel, types: remember_signature(kernel, signature_of_numba_cuda(types)))
    replace(
        kernels, "compile_device",
        lambda kernel, types, result=None: remember_signature(kernel, signature_of_numba_cuda(types), numba_type(result)),
    )  # fmt: skip
    replace(kernels, "disable_compile", lambda kernel, disabled=True: None)
    replace(kernels, "specialize", lambda kernel, *arguments: kernel)
    replace(descriptor._ForAll, "__call__", launch_for_all)
    for module in modules:
        for name in (*names, *HOST_NAMES):
            if hasattr(module, name):
                replace(module, name, getattr(numba.cuda, name))
        replace(module.cudadrv.devicearray, "DeviceNDArray", numba_arrays.DeviceArray)
