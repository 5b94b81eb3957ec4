"""A GPU on paper: addresses with nothing behind them, and launches that are noted down. For counting what a step launches."""

import itertools

import numpy as np

from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.memory import DeviceMemory


class PaperMemory:
    """Addresses with nothing behind them."""

    def __init__(self):
        self.addresses = itertools.count(1 << 32, 1 << 32)

    def allocate(self, nbytes):
        return next(self.addresses)

    def copy_to_device(self, pointer, address, nbytes):
        pass

    def fill(self, pointer, value, nbytes):
        pass


class PaperOps(CudaOps):
    """The operations of an H200, on paper."""

    def __init__(self, matmul="gemv"):
        super().__init__("bfloat16", {"matmul": matmul}, simulated=True)
        self.memory, self.capability = DeviceMemory(PaperMemory()), (9, 0)

    def weight(self, host_array, dtype=None):
        return self.empty(host_array.shape, self.dtype if dtype is None else dtype)


# What minllm.runtime.tensor_map needs instead of the driver, which makes the descriptors.
NO_MAPS = dict(encode=lambda *given: None, keep=lambda words: 0, DESCRIPTORS={})


class PaperMachine:
    """What a DecodeGraph asks of the machine: a graph is the function itself."""

    def capture(self, function):
        self.launch, self.result = function, None
        return self

    def write(self, array, host):
        assert array.shape == np.shape(host)


class CountingClock:
    """A clock by which every launch takes a microsecond; `launches` is the list that they are noted in."""

    def __init__(self, launches):
        self.launches = launches

    def seconds(self, calls):
        found = []
        for call in calls:
            before = len(self.launches)
            call()
            found.append(1e-6 * (len(self.launches) - before))
        return found

    def graph(self, calls):
        return lambda: [call() for call in calls]
