"""Copy small arrays between host and device through reused page-locked memory: one copy per step and direction."""

import math
from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.runtime.array_protocol import Array

ALIGNMENT = 64  # int32 elements: every array on the device begins at a multiple of 256 bytes
SMALLEST_BYTES = 4096  # minimum size of a buffer of host memory


class PinnedMemory:
    """Page-locked host memory in sizes of powers of two, because locking takes longer than copying."""

    def __init__(self, machine):
        self.machine = machine
        self._idle: dict[int, list[np.ndarray]] = defaultdict(list)  # size in bytes -> unused buffers

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
        """(memory, the array in it). Return the memory with give_back when all copies from or to it have ended."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        size = max(SMALLEST_BYTES, 1 << max(0, nbytes - 1).bit_length())
        memory = self._idle[size].pop() if self._idle[size] else self.machine.pinned((size,), np.uint8)
        return memory, memory[:nbytes].view(dtype).reshape(shape)

    def give_back(self, memory: np.ndarray) -> None:
        """Make memory from `take` available again."""
        self._idle[memory.size].append(memory)


class Uploads:
    """Copies int32 arrays to the device without waiting. Steps launched earlier see the old contents."""

    def __init__(self, ops, machine, memory: PinnedMemory):
        self.ops, self.machine, self.memory = ops, machine, memory
        self._under_way: deque[tuple[Any, np.ndarray]] = deque()  # (event of a copy, its host memory), oldest first

    def send(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """New arrays on the device, by name, in one copy."""
        starts, total = {}, 0
        for name, array in arrays.items():
            starts[name] = total
            total += -(-array.size // ALIGNMENT) * ALIGNMENT
        packed = np.zeros(total, np.int32)
        for name, array in arrays.items():
            packed[starts[name] : starts[name] + array.size] = array.reshape(-1)
        device = self.ops.empty((total,), np.int32)
        self.write(device, packed)
        return {name: device[starts[name] : starts[name] + array.size].reshape(array.shape) for name, array in arrays.items()}

    def write(self, device: Array, host: np.ndarray) -> None:
        """Overwrite an array on the device."""
        memory, pinned = self.memory.take(host.shape, host.dtype)
        pinned[...] = host
        self._under_way.append((self.machine.write_later(device, pinned), memory))
        while len(self._under_way) > 1 and self._under_way[0][0].is_done:
            self.memory.give_back(self._under_way.popleft()[1])


class Readback:
    """A copy of arrays to the host, started when it is made."""

    def __init__(self, machine, memory: PinnedMemory, arrays: list[Any]):
        self._memory = memory
        self._taken = [memory.take(array.shape, array.dtype) for array in arrays]
        events = [machine.read_later(array, pinned) for array, (_, pinned) in zip(arrays, self._taken, strict=True)]
        self._event = events[-1]  # copies end in order, so the last event covers all

    def wait(self) -> list[np.ndarray]:
        """Wait for the arrays; to be called once."""
        self._event.sync()
        arrays = [pinned.copy() for _, pinned in self._taken]
        for memory, _ in self._taken:
            self._memory.give_back(memory)
        return arrays
