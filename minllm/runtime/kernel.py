"""The `@kernel` decorator: one function to launch, simulate, trace or compile.

    @kernel
    def scale_kernel(x, out, factor): ...

    scale_kernel[grid, block](x, out, 2.0)                            # GPU; x and out are device arrays
    scale_kernel[grid, block, stream, shared_bytes](x, out, 2.0)
    scale_kernel.simulate[grid, block](x, out, 2.0)                   # NumPy arrays, no GPU
    scale_kernel.trace[grid, block](x, out, 2.0)                      # the same, with counts: bytes, sectors, conflicts, FLOPs
    scale_kernel.compile(x, out, 2.0, compute_capability=(9, 0))      # registers, spills, SASS

Numba compiles, but the launch calls the driver directly, because Numba's launch takes much more host time per array. Arrays reach the
kernel in Numba's own layout (parameters.py), so kernels can index them in several dimensions.

A kernel made with `dependent_launch=True` may start while its predecessor in the stream still runs: its blocks start, and load what no
kernel writes (weights), during the predecessor's last microseconds. Every thread calls `ptx.griddepcontrol_wait` before it reads results
of earlier kernels or writes anything, and `ptx.griddepcontrol_launch_dependents` to let the next kernel start early. Before compute
capability 9.0 the launch is an ordinary one. CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".

Shared memory and the L1 cache divide one memory of an SM, and every load in flight occupies its place in L1. By default a kernel keeps the
division of the kernel before it if its own blocks fit: behind attention with 200 KB of shared memory, 28 KB are left of L1, and a GEMV
reads at two thirds of its rate. `carveout` asks for another division, for which an SM waits until the blocks of the kernel before have
ended. Same guide, "Unified Shared Memory/L1/Texture Cache".
"""

import functools
import numbers

import numpy as np

from minllm.errors import DeviceError, KernelArgumentError
from minllm.machine.call_frames import with_room
from minllm.machine.numba_cuda import HAS_NUMBA_CUDA
from minllm.runtime.argument_type import argument_type
from minllm.runtime.device import check_driver, current_device
from minllm.runtime.parameters import parameter, write_parameters

if HAS_NUMBA_CUDA:  # before kernels make their device functions
    from minllm.runtime import numba_habits  # noqa: F401

# A kernel with more shared memory per block (static and dynamic) than this must opt in.
DEFAULT_SHARED_BYTES = 48 * 1024

compilation_listeners = []  # functions called with a kernel's name before it is compiled or loaded, for progress bars


class Kernel:
    """A kernel to launch, simulate, trace or compile; made by the decorator `kernel`."""

    argument_type = staticmethod(argument_type)  # the simulator converts arguments to the same types

    def __init__(self, function, dependent_launch=False, carveout=None, **options):
        functools.update_wrapper(self, function)
        self.function, self.dependent_launch, self.carveout, self.options = function, dependent_launch, carveout, options
        self.loaded = {}  # argument types -> LoadedKernel
        self.clusters_at_a_time = {}  # (block, bytes of shared memory, cluster) -> clusters

    def __getitem__(self, configuration):
        """`kernel[grid, block, stream=None, shared_bytes=0, cluster=None]`: the launch configuration, as in numba.cuda."""
        return Launch(self, *configuration)

    @property
    def simulate(self):
        """`kernel.simulate[grid, block, stream=None, shared_bytes=0, cluster=None](*numpy_arrays)`: launch in the simulator."""
        return Simulation(self)

    @property
    def trace(self):
        """`kernel.trace[grid, block, stream=None, shared_bytes=0, cluster=None](*numpy_arrays)` -> Trace of a simulated launch."""
        return Simulation(self, traced=True)

    def without_contraction(self):
        """The same kernel, whose products and sums are rounded each, on a GPU and in the simulator, instead of becoming one fma."""
        return Kernel(self.function, self.dependent_launch, self.carveout, **self.options | dict(contract=False))

    def compile(self, *arguments, compute_capability=(9, 0), wait=True):
        """The CompiledKernel for these arguments or Numba types. Needs no GPU. wait: see compiler.compile_kernel."""
        from minllm.runtime import compiler  # needs numba-cuda

        types = [argument_type(argument) for argument in arguments]
        return with_room(compiler.compile_kernel)(self.function, types, compute_capability, wait=wait, **self.options)

    def cache_key(self, types, compute_capability):
        """The disk cache's key for arguments of these Numba types; None if the kernel is not cached."""
        from minllm.runtime.cache_key import cache_key

        return cache_key(self.function, types, compute_capability, self.options)

    def load(self, arguments):
        """Compile for the current device (or read the disk cache) and load the cubin -> LoadedKernel."""
        for listener in compilation_listeners:
            listener(self.__name__)
        device = current_device()
        compiled = self.compile(*arguments, compute_capability=device.compute_capability)
        return LoadedKernel(compiled, device, self.dependent_launch, self.carveout)


class LoadedKernel:
    """A cubin that the driver has loaded."""

    def __init__(self, compiled, device, dependent_launch=False, carveout=None):
        from cuda.bindings import driver

        self.compiled, self.device = compiled, device
        self.dependent_launch = dependent_launch and device.compute_capability >= (9, 0)
        self.library = check_driver(driver.cuLibraryLoadData(compiled.cubin, [], [], 0, [], [], 0), f"load {compiled.name}")
        self.kernel = check_driver(driver.cuLibraryGetKernel(self.library, compiled.name.encode()), f"find {compiled.name}")
        # A CUkernel is accepted wherever the driver launches a CUfunction.
        self.function = driver.CUfunction(int(self.kernel))
        self.shared_bytes_allowed = DEFAULT_SHARED_BYTES - (compiled.shared_bytes or 0)  # limit of dynamic shared memory
        if carveout is not None:
            self.set_attribute("PREFERRED_SHARED_MEMORY_CARVEOUT", carveout)

    def allow_shared_bytes(self, shared_bytes):
        """Raise the kernel's limit of dynamic shared memory, which is 48 KB by default."""
        self.set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
        self.shared_bytes_allowed = shared_bytes

    def set_attribute(self, name, value):
        """Set the CUfunction_attribute CU_FUNC_ATTRIBUTE_`name`."""
        from cuda.bindings import driver

        attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        check_driver(
            driver.cuKernelSetAttribute(attribute, value, self.kernel, self.device.index), f"set {name} of {self.compiled.name} to {value}"
        )


class Launch:
    """A kernel with its launch configuration: call it with the arguments."""

    __slots__ = ("kernel", "grid", "block", "stream", "shared_bytes", "cluster")

    def __init__(self, kernel, grid, block, stream=None, shared_bytes=0, cluster=None):
        self.kernel, self.stream, self.shared_bytes = kernel, stream, shared_bytes
        self.grid, self.block = three_dimensions(grid, "grid"), three_dimensions(block, "block")
        self.cluster = None if cluster is None else three_dimensions(cluster, "cluster")

    def loaded(self, types, arguments):
        """The LoadedKernel for arguments of these types, with its limit of dynamic shared memory raised if needed."""
        loaded = self.kernel.loaded.get(types)
        if loaded is None:
            loaded = self.kernel.loaded[types] = self.kernel.load(arguments)
        if self.shared_bytes > loaded.shared_bytes_allowed:
            loaded.allow_shared_bytes(self.shared_bytes)
        return loaded

    def clusters_at_a_time(self, *arguments):
        """The most clusters that can be resident at a time: a cluster runs within one GPC, and GPCs differ in their numbers of SMs."""
        from cuda.bindings import driver

        key = self.block, self.shared_bytes, self.cluster
        found = self.kernel.clusters_at_a_time.get(key)
        if found is None:
            loaded = self.loaded(tuple(parameter(argument)[0] for argument in arguments), arguments)
            configuration = driver_configuration(self.grid, self.block, self.shared_bytes, 0, self.cluster, False)
            result = driver.cuOccupancyMaxActiveClusters(loaded.function, configuration)
            found = self.kernel.clusters_at_a_time[key] = check_driver(result, f"count the clusters of {self.kernel.__name__}")
        return found

    def __call__(self, *arguments):
        """Launch the kernel in stream order; returns at once."""
        from cuda.bindings import driver

        types, packed = zip(*map(parameter, arguments)) if arguments else ((), ())
        loaded = self.loaded(types, arguments)
        stream = self.stream
        stream = 0 if stream is None else stream if type(stream) is int else int(getattr(stream, "handle", stream))
        table = write_parameters(packed)
        if self.cluster is None and not loaded.dependent_launch:
            (status,) = driver.cuLaunchKernel(loaded.function, *self.grid, *self.block, self.shared_bytes, stream, table, 0)
        else:
            sizes = (self.grid, self.block, self.shared_bytes, stream, self.cluster, loaded.dependent_launch)
            (status,) = driver.cuLaunchKernelEx(driver_configuration(*sizes), loaded.function, table, 0)
        if status:
            describe = f"{self.kernel.__name__}[{self.grid}, {self.block}, shared_bytes={self.shared_bytes}, cluster={self.cluster}]"
            raise DeviceError(f"launching {describe} failed: {status.name}")


@functools.lru_cache(1024)
def driver_configuration(grid, block, shared_bytes, stream, cluster, dependent_launch):
    """The CUlaunchConfig of a launch with attributes; grid counts blocks, not clusters."""
    from cuda.bindings import driver

    attributes = []
    if cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster
        attributes.append(attribute)
    if dependent_launch:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    configuration = driver.CUlaunchConfig()
    configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
    configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = block
    configuration.sharedMemBytes, configuration.hStream = shared_bytes, driver.CUstream(stream)
    configuration.attrs, configuration.numAttrs = attributes, len(attributes)
    return configuration


class Simulation:
    """`kernel.simulate` or `kernel.trace`: call it as `[launch configuration](arguments)`."""

    def __init__(self, kernel, traced=False):
        self.kernel, self.traced = kernel, traced

    def __getitem__(self, configuration):
        from minllm.sim import simulate, trace

        grid, block, *rest = configuration
        shared_bytes = rest[1] if len(rest) > 1 else 0
        cluster = rest[2] if len(rest) > 2 else None
        chosen = trace if self.traced else simulate
        grid, block = three_dimensions(grid, "grid"), three_dimensions(block, "block")
        return functools.partial(chosen, self.kernel, grid, block, shared_bytes=shared_bytes, cluster=cluster)


def kernel(function=None, *, fastmath=False, launch_bounds=None, max_registers=None, dependent_launch=False, carveout=None):
    """Make a Kernel from a Python function written for numba.cuda.

    fastmath: approximate division, square root and similar, and float32 without denormal numbers. launch_bounds: (threads per block, blocks
    per SM) that must fit, so that ptxas limits the registers. max_registers: limit of registers per thread. dependent_launch: the kernel
    may start before its predecessor has ended. carveout: percentage of an SM's memory that is shared memory, 0 for as little as the blocks
    need; None: the driver's choice. See the module's docstring.
    """
    options = dict(fastmath=fastmath, launch_bounds=launch_bounds, max_registers=max_registers)
    make = functools.partial(Kernel, dependent_launch=dependent_launch, carveout=carveout, **options)
    return make if function is None else make(function)


def launch(kernel, grid, block, arguments, stream=None, shared_bytes=0, cluster=None):
    """Launch in the simulator for NumPy arrays, on the GPU for device arrays. Raises KernelArgumentError for a mixture."""
    on_host = [isinstance(a, np.ndarray) for a in arguments if getattr(a, "ndim", 0)]
    if not on_host or on_host.count(on_host[0]) != len(on_host):
        raise KernelArgumentError(
            f"{kernel.__name__} was given {sum(on_host)} NumPy arrays and {len(on_host) - sum(on_host)} device arrays; "
            "all arrays of a launch live in one place: copy them there first"
        )
    if grid == 0 or (type(grid) is tuple and 0 in grid):
        return  # an empty batch
    where = kernel.simulate if on_host[0] else kernel
    where[grid, block, stream, shared_bytes, cluster](*arguments)


def check(condition, message):
    """Raise KernelArgumentError(message) unless `condition` is true, for launchers."""
    if not condition:
        raise KernelArgumentError(message)


def three_dimensions(size, what):
    """A grid, block or cluster size as three non-negative ints. Raises KernelArgumentError."""
    if type(size) is int and size >= 0:
        return size, 1, 1
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(one, numbers.Integral) and one >= 0 for one in sizes):
        raise KernelArgumentError(f"the {what} is {size!r}; it has one to three sizes, which are integers, none negative")
    return (*map(int, sizes), 1, 1)[:3]
