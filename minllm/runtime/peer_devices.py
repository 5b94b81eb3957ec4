"""Several ranks in one process that read and write each other's memory: for tests and measurements.

An engine has one process per GPU. Here one process drives all GPUs, so that a measurement contains only the kernels. Each rank has a pool
of memory that all others may access (cuda.core, `DeviceMemoryResource.peer_accessible_by`), and a stream of its own. On a machine with one
GPU the ranks of a test can share it: kernels of several streams run at once, and wait for each other through its L2 cache, not over NVLink.
Source: CUDA C++ Programming Guide, "Peer-to-Peer Memory Access".
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import DeviceError
from minllm.runtime.array import DeviceArray
from minllm.runtime.device import check_driver, core_device, is_available, make_context


def devices_available() -> int:
    """The number of GPUs of this machine; 0 without a driver."""
    if not is_available():
        return 0
    from cuda.core import Device

    return len(Device.get_all_devices())


def why_no_peers(count: int) -> str | None:
    """A sentence that says why this machine lacks `count` GPUs that access each other's memory; None if it has them."""
    if devices_available() < count:
        return f"this needs {count} GPUs, and there are {devices_available()}"
    devices = [core_device(index) for index in range(count)]
    pairs = [(one.device_id, other.device_id) for one in devices for other in devices if one is not other]
    apart = [pair for pair in pairs if not devices[pair[0]].can_access_peer(devices[pair[1]])]
    return f"GPUs {apart[0][0]} and {apart[0][1]} cannot access each other's memory: `nvidia-smi topo -p2p r` says why" if apart else None


class DeviceCopies:
    """Copies between the host and one GPU's memory; each waits for all work of that GPU."""

    def __init__(self, device: Any):
        self.device = device

    def copy_to_device(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy from host to device."""
        self.run("cuMemcpyHtoD", pointer, address, nbytes)

    def copy_to_host(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy from device to host."""
        self.run("cuMemcpyDtoH", address, pointer, nbytes)

    def fill(self, pointer: int, value: int, nbytes: int) -> None:
        """Set every byte."""
        self.run("cuMemsetD8", pointer, value, nbytes)

    def run(self, name: str, *arguments: int) -> None:
        """Call a function of the driver by its name, after all work of the GPU, and wait for its completion."""
        from cuda.bindings import driver

        self.device.set_current()
        self.device.sync()
        check_driver(getattr(driver, name)(*arguments), f"do {name}")
        self.device.sync()


class PeerDevices:
    """GPUs 0 to count - 1 as ranks, or GPU 0 as all ranks. Raises DeviceError if there are fewer or they cannot access each other's memory.

    Kernels that wait for each other must run at once. Ranks that share a GPU therefore have grids of at most `most_blocks`, together one
    block per SM, and no dependent launch: blocks of a rank's next kernel would take the place of another rank's.
    """

    def __init__(self, count: int, one_gpu: bool = False):
        gpus = 1 if one_gpu else count
        if reason := why_no_peers(gpus):
            raise DeviceError(reason)
        from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions, StreamOptions

        if one_gpu:  # the hardware's queues: streams that share one would wait for each other. The context reads it when it is made
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.devices = [core_device(rank % gpus) for rank in range(count)]
        self.most_blocks = self.devices[0].properties.multiprocessor_count // count if one_gpu else None
        self.pools, self.streams, self.copies = [], [], []
        for device in self.devices:
            make_context(device, device.device_id)
            self.pools.append(DeviceMemoryResource(device, DeviceMemoryResourceOptions()))
            self.pools[-1].peer_accessible_by = [other.device_id for other in self.devices if other.device_id != device.device_id]
            self.streams.append(device.create_stream(options=StreamOptions(nonblocking=True)))
            self.copies.append(DeviceCopies(device))

    def zeros(self, rank: int, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """An array of zeros in a rank's memory, which all ranks may access."""
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
        self.devices[rank].set_current()
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = self.pools[rank].allocate(nbytes, stream=self.streams[rank])
        array = DeviceArray(int(buffer.handle), shape, dtype, buffer, self.copies[rank])
        array.fill_bytes(0)
        return array

    def array(self, rank: int, host: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array in a rank's memory."""
        array = self.zeros(rank, host.shape, host.dtype)
        array.copy_from_host(np.ascontiguousarray(host))
        return array

    def load(self, launches: Sequence[Any]) -> None:
        """Compile and load the kernel of each rank's launch, so that no running kernel waits for one that is still being compiled."""
        from cuda.bindings import driver

        from minllm.runtime.parameters import parameter

        for device, one in zip(self.devices, launches, strict=True):
            types = tuple(parameter(argument)[0] for argument in one.arguments)
            if types not in one.kernel.loaded:
                one.kernel.loaded[types] = one.kernel.load(one.arguments)
            if self.most_blocks is not None:
                one.kernel.loaded[types].dependent_launch = False
            device.set_current()
            check_driver(driver.cuKernelGetFunction(one.kernel.loaded[types].kernel), f"load {one.kernel.__name__}")

    def launch(self, launches: Sequence[Any]) -> None:
        """Execute each rank's launch on the rank's stream; returns at once."""
        for device, stream, one in zip(self.devices, self.streams, launches, strict=True):
            device.set_current()
            one.within(self.most_blocks).launch(stream)

    def call(self, rank: int, launcher: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a launcher, which takes a `stream`, on a rank's stream; returns at once.

        Its kernels keep dependent launch: ranks that share a GPU must not call one while a kernel waits for another rank.
        """
        self.devices[rank].set_current()
        launcher(*arguments, **options, stream=self.streams[rank])

    def synchronize(self) -> None:
        """Wait for all GPUs."""
        for stream in self.streams:
            stream.sync()

    def graphs(self, launch_all: Callable[[], None]) -> Callable[[], None]:
        """Capture the launches of `launch_all` in one graph per GPU, without executing them; returns a function that replays all graphs."""
        builders = []
        for device, stream in zip(self.devices, self.streams, strict=True):
            device.set_current()
            builders.append(stream.create_graph_builder())
            builders[-1].begin_building("relaxed")
        launch_all()
        graphs = []
        for device, stream, builder in zip(self.devices, self.streams, builders, strict=True):
            device.set_current()
            builder.end_building()
            graphs.append(builder.complete())
            graphs[-1].upload(stream)
        self.synchronize()

        def replay():
            for device, stream, graph in zip(self.devices, self.streams, graphs, strict=True):
                device.set_current()
                graph.launch(stream)

        return replay
