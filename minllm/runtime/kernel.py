"""The `@kernel` decorator: one Python function that runs on the GPU, in the simulator, and through the ahead-of-time compiler.

    @kernel
    def scale_kernel(x, out, factor): ...

    scale_kernel[grid, block](x, out, 2.0)                            # GPU; x and out are device arrays
    scale_kernel[grid, block, stream, shared_bytes](x, out, 2.0)
    scale_kernel.simulate[grid, block](x, out, 2.0)                   # NumPy arrays, no GPU
    scale_kernel.trace[grid, block](x, out, 2.0)                      # the same, and what it did: bytes, sectors, conflicts, FLOPs
    scale_kernel.compile(x, out, 2.0, compute_capability=(9, 0))      # registers, spills, SASS

Numba compiles; the launch is our own, straight through the driver: Numba's takes tens of microseconds of host time for eight
arrays. Arrays reach the kernel in Numba's own layout, so that kernels index them in several dimensions:
(meminfo, parent, size, itemsize, data, shape..., strides...), each 64 bits wide.
"""

import ctypes
import functools

import numpy as np

from minllm.errors import DeviceError, KernelArgumentError
from minllm.runtime import compiler
from minllm.runtime.device import check_driver, current_device

# Static and dynamic shared memory of a block beyond this has to be asked for, kernel by kernel.
DEFAULT_SHARED_BYTES = 48 * 1024

compilation_listeners = []  # each is called with a kernel's name before it is compiled or loaded: progress bars hook in here


class Kernel:
    """A kernel and everything that can be done with it; made by the decorator `kernel`."""

    def __init__(self, function, fastmath=False, launch_bounds=None, max_registers=None):
        functools.update_wrapper(self, function)
        self.function = function
        self.options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
        self.loaded = {}  # argument types -> the driver's handle

    def __getitem__(self, configuration):
        """`kernel[grid, block, stream=None, shared_bytes=0, cluster=None]`: the launch configuration, as in numba.cuda."""
        return Launch(self, *configuration)

    @property
    def simulate(self):
        """`kernel.simulate[grid, block, stream=None, shared_bytes=0, cluster=None](*numpy_arrays)`: the same launch in the simulator."""
        return Simulation(self)

    @property
    def trace(self):
        """`kernel.trace[grid, block, stream=None, shared_bytes=0, cluster=None](*numpy_arrays)`: simulate, and count. -> Trace"""
        return Simulation(self, traced=True)

    def compile(self, *arguments, compute_capability=(9, 0)):
        """Compile ahead of time for arguments like these (arrays, scalars or Numba types). Needs no GPU. -> CompiledKernel"""
        types = [compiler.argument_type(argument) for argument in arguments]
        return compiler.compile_kernel(self.function, types, compute_capability, **self.options)

    def handle(self, arguments):
        """The driver's function for arguments like these on the current device: compiled, loaded and remembered."""
        key = tuple(
            (a.dtype, a.ndim) if hasattr(a, "ndim") and a.ndim else a.dtype if isinstance(a, np.generic) else type(a) for a in arguments
        )
        found = self.loaded.get(key)
        if found is None:
            found = self.loaded[key] = self.load(arguments)
        return found

    def load(self, arguments):
        """Compile for the current device (or read the disk cache) and hand the cubin to the driver."""
        for listener in compilation_listeners:
            listener(self.__name__)
        device = current_device()
        compiled = self.compile(*arguments, compute_capability=device.compute_capability)
        return LoadedKernel(compiled, device)


class LoadedKernel:
    """A cubin in the driver's hands."""

    def __init__(self, compiled, device):
        from cuda.bindings import driver

        self.compiled, self.device = compiled, device
        self.library = check_driver(driver.cuLibraryLoadData(compiled.cubin, [], [], 0, [], [], 0), f"load {compiled.name}")
        self.kernel = check_driver(driver.cuLibraryGetKernel(self.library, compiled.name.encode()), f"find {compiled.name}")
        # A CUkernel is accepted wherever the driver launches a CUfunction.
        self.function = driver.CUfunction(int(self.kernel))
        self.shared_bytes_allowed = DEFAULT_SHARED_BYTES

    def allow_shared_bytes(self, shared_bytes):
        """Raise the kernel's limit of dynamic shared memory; above 48 KB a kernel has to ask."""
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        what = f"give {self.compiled.name} {shared_bytes} bytes of shared memory"
        check_driver(driver.cuKernelSetAttribute(attribute, shared_bytes, self.kernel, self.device.index), what)
        self.shared_bytes_allowed = shared_bytes


class Launch:
    """A kernel with its grid, block, stream, dynamic shared memory and cluster (blocks along x, y, z): call it with the arguments."""

    def __init__(self, kernel, grid, block, stream=None, shared_bytes=0, cluster=None):
        self.kernel, self.stream, self.shared_bytes = kernel, stream, shared_bytes
        self.grid, self.block = three_dimensions(grid, "grid"), three_dimensions(block, "block")
        self.cluster = None if cluster is None else three_dimensions(cluster, "cluster")

    def __call__(self, *arguments):
        """Launch; returns at once, the kernel runs in stream order."""
        from cuda.bindings import driver

        loaded = self.kernel.handle(arguments)
        if self.shared_bytes > loaded.shared_bytes_allowed:
            loaded.allow_shared_bytes(self.shared_bytes)
        parameters, keep = pack(arguments)
        stream = 0 if self.stream is None else int(getattr(self.stream, "handle", self.stream))
        if self.cluster is None:
            (status,) = driver.cuLaunchKernel(loaded.function, *self.grid, *self.block, self.shared_bytes, stream, parameters, 0)
        else:
            (status,) = driver.cuLaunchKernelEx(self.driver_configuration(stream), loaded.function, parameters, 0)
        if status:
            describe = f"{self.kernel.__name__}[{self.grid}, {self.block}, shared_bytes={self.shared_bytes}, cluster={self.cluster}]"
            raise DeviceError(f"launching {describe} failed: {status.name}")
        del keep

    def driver_configuration(self, stream):
        """The launch as the driver takes it when blocks form clusters; the grid still counts blocks."""
        from cuda.bindings import driver

        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = self.cluster
        configuration = driver.CUlaunchConfig()
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = self.grid
        configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = self.block
        configuration.sharedMemBytes, configuration.hStream = self.shared_bytes, driver.CUstream(stream)
        configuration.attrs, configuration.numAttrs = [attribute], 1
        return configuration


class Simulation:
    """`kernel.simulate` and `kernel.trace`: take a launch configuration in square brackets, then the arguments."""

    def __init__(self, kernel, traced=False):
        self.kernel, self.traced = kernel, traced

    def __getitem__(self, configuration):
        from minllm.sim import simulate, trace

        grid, block, *rest = configuration
        shared_bytes = rest[1] if len(rest) > 1 else 0
        cluster = rest[2] if len(rest) > 2 else None
        chosen = trace if self.traced else simulate
        return functools.partial(chosen, self.kernel, grid, block, shared_bytes=shared_bytes, cluster=cluster)


def kernel(function=None, *, fastmath=False, launch_bounds=None, max_registers=None):
    """Make a GPU kernel of a Python function written for numba.cuda.

    fastmath: approximate division, square root and the like, and contraction; launch_bounds: (threads a block, blocks a
    multiprocessor) that ptxas is to fit the registers to; max_registers: a cap on registers a thread.
    """
    options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
    if function is None:
        return functools.partial(Kernel, **options)
    return Kernel(function, **options)


def launch(kernel, grid, block, arguments, stream=None, shared_bytes=0, cluster=None):
    """Launch where the arrays are: in the simulator for NumPy arrays, on the GPU for device arrays. Mixing them is an error."""
    on_host = [isinstance(a, np.ndarray) for a in arguments if getattr(a, "ndim", 0)]
    if not on_host or len(set(on_host)) != 1:
        raise KernelArgumentError(
            f"{kernel.__name__} was given {sum(on_host)} NumPy arrays and {len(on_host) - sum(on_host)} device arrays; "
            "all arrays of a launch live in one place: copy them there first"
        )
    if 0 in three_dimensions(grid, "grid"):
        return  # nothing to do: an empty batch
    where = kernel.simulate if on_host[0] else kernel
    where[grid, block, stream, shared_bytes, cluster](*arguments)


def check(condition, message):
    """Raise KernelArgumentError(message) unless `condition` holds: launchers check shapes and dtypes with this."""
    if not condition:
        raise KernelArgumentError(message)


def three_dimensions(size, what):
    """A grid or block as three non-negative ints."""
    sizes = tuple(int(n) for n in size) if isinstance(size, (tuple, list)) else (int(size),)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise KernelArgumentError(f"the {what} is {size!r}; it has one to three sizes, none negative")
    return sizes + (1,) * (3 - len(sizes))


def pack(arguments):
    """(address of the driver's parameter table, what must stay alive until the launch call returned)."""
    values = []
    for argument in arguments:
        values.extend(flatten(argument))
    table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    return ctypes.addressof(table), (table, values)


def flatten(argument):
    """The kernel parameters of one argument, as ctypes objects; those of an array are made once and kept on it."""
    if argument is None:
        return (ctypes.c_uint64(0),)  # Numba gives None a pointer that nobody reads
    if hasattr(argument, "numba_type"):
        return argument.kernel_parameters
    if hasattr(argument, "ndim") and argument.ndim:
        kept = getattr(argument, "kernel_parameters", None)
        if kept is None:
            kept = argument.kernel_parameters = array_parameters(argument)
        return kept
    if isinstance(argument, np.generic):
        return (np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item()),)
    return (ctypes.c_int32(argument),) if isinstance(argument, int) else (ctypes.c_float(argument),)


def array_parameters(array):
    """Numba's parameters of a C-contiguous array: (meminfo, parent, size, itemsize, data, shape..., strides...)."""
    itemsize = array.dtype.itemsize
    strides, step = [], itemsize
    for extent in reversed(array.shape):
        strides.insert(0, step)
        step *= extent
    words = (0, 0, step // itemsize, itemsize, array.pointer, *array.shape, *strides)
    return tuple(ctypes.c_uint64(word) for word in words)
