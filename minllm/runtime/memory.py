"""Device memory: a caching pool, and page-locked host memory.

Asking the driver for memory costs up to a millisecond and waits for the GPU; a forward pass needs a dozen temporaries a layer.
So freed blocks are kept in lists by size and handed out again. All kernels run in one order (one stream, and the default stream, which
waits for it), so a block may be reused as soon as Python has dropped its last reference: whoever writes to it next does so after the
kernels that were launched before.
"""

import contextlib
import ctypes
import functools
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from minllm.errors import OutOfMemoryError
from minllm.runtime.array import DeviceArray
from minllm.runtime.device import check_driver, current_device

SMALLEST_BLOCK = 512  # bytes; also the alignment of every array
LARGE_STEP = 2 << 20  # large blocks are multiples of this, as in the driver


def block_size_for(nbytes: int) -> int:
    """Bytes of the block that holds an array: a power of two up to 1 MiB, above that a multiple of 2 MiB."""
    if nbytes <= LARGE_STEP // 2:
        return max(SMALLEST_BLOCK, 1 << max(0, nbytes - 1).bit_length())
    return -(-nbytes // LARGE_STEP) * LARGE_STEP


class Block:
    """A piece of device memory; it goes back to its pool when the last array that uses it is dropped."""

    __slots__ = ("pointer", "size", "pool")

    def __init__(self, pointer: int, size: int, pool: "DeviceMemory"):
        self.pointer, self.size, self.pool = pointer, size, pool

    def __del__(self):
        self.pool.take_back(self.pointer, self.size)


class DeviceMemory:
    """The pool. `memory` allocates, frees, copies and fills: CudaMemory, or in tests the host's own."""

    def __init__(self, memory: Any):
        self.memory = memory
        self.free: dict[int, list[int]] = defaultdict(list)  # block size -> addresses
        self.bytes_in_use = 0
        self.bytes_cached = 0
        self.held: Counter[int] = Counter()  # addresses that captured graphs use: never given back to the driver
        self.recorded: set[int] | None = None

    def empty(self, shape: Any, dtype: Any) -> DeviceArray:
        """An array with unspecified contents. Raises OutOfMemoryError."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        block = self.allocate(block_size_for(nbytes))
        return DeviceArray(block.pointer, shape, dtype, block, self.memory)

    def zeros(self, shape: Any, dtype: Any) -> DeviceArray:
        """An array of zeros."""
        array = self.empty(shape, dtype)
        array.fill_bytes(0)
        return array

    def array(self, host: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array."""
        array = self.empty(host.shape, host.dtype)
        array.copy_from_host(host)
        return array

    def allocate(self, size: int) -> Block:
        """A block of a size from block_size_for: a cached one, else a new one, else a new one after giving all cached ones back."""
        if self.free[size]:
            pointer = self.free[size].pop()
            self.bytes_cached -= size
        else:
            pointer = self.memory.allocate(size)
            if pointer is None and self.trim():
                pointer = self.memory.allocate(size)
            if pointer is None:
                free, total = self.memory.info()
                raise OutOfMemoryError(
                    f"{size / 2**20:.1f} MiB of GPU memory were asked for; minllm holds {self.bytes_in_use / 2**20:.1f} MiB, and "
                    f"{free / 2**20:.1f} of {total / 2**20:.1f} MiB are free: lower gpu_memory_utilization, max_num_batched_tokens "
                    "or max_num_seqs, or end other programs that use the GPU"
                )
        self.bytes_in_use += size
        if self.recorded is not None:
            self.recorded.add(pointer)
        return Block(pointer, size, self)

    def take_back(self, pointer: int, size: int) -> None:
        """Cache a block that nobody refers to any more."""
        self.free[size].append(pointer)
        self.bytes_in_use -= size
        self.bytes_cached += size

    def trim(self) -> int:
        """Give the cached blocks back to the driver, apart from those that graphs hold; how many bytes that freed."""
        freed = 0
        for size, pointers in self.free.items():
            for pointer in [p for p in pointers if not self.held[p]]:
                self.memory.free(pointer)
                pointers.remove(pointer)
                freed += size
        self.bytes_cached -= freed
        return freed

    @contextlib.contextmanager
    def recording(self) -> Iterator[set[int]]:
        """Collects the addresses of all blocks handed out inside, for `hold`: what a captured graph will write to on every replay."""
        self.recorded = set()
        try:
            yield self.recorded
        finally:
            self.recorded = None

    def hold(self, owner: Any, pointers: set[int]) -> None:
        """Keep these blocks from going back to the driver as long as `owner` lives."""
        self.held.update(pointers)
        weakref.finalize(owner, self.held.subtract, Counter(pointers)).atexit = False


class CudaMemory:
    """Allocation, copies and fills through the driver.

    Copies and fills go through the legacy default stream, which waits for the kernels launched before, and for which later kernels wait.
    """

    def __init__(self):
        self.device = current_device()

    def allocate(self, nbytes: int) -> int | None:
        """The address of new memory, or None if there is not enough."""
        from cuda.bindings import driver

        status, pointer = driver.cuMemAlloc(nbytes)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return None
        return int(check_driver((status, pointer), f"allocate {nbytes} bytes"))

    def free(self, pointer: int) -> None:
        """Give memory back; waits until the GPU is idle."""
        from cuda.bindings import driver

        check_driver(driver.cuMemFree(pointer), "free memory")

    def copy_to_device(self, pointer: int, address: int, nbytes: int) -> None:
        """From host to device."""
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyHtoD(pointer, address, nbytes), f"copy {nbytes} bytes to the GPU")

    def copy_to_host(self, address: int, pointer: int, nbytes: int) -> None:
        """From device to host."""
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyDtoH(address, pointer, nbytes), f"copy {nbytes} bytes from the GPU")

    def fill(self, pointer: int, value: int, nbytes: int) -> None:
        """Set every byte."""
        from cuda.bindings import driver

        check_driver(driver.cuMemsetD8(pointer, value, nbytes), f"fill {nbytes} bytes")

    def info(self) -> tuple[int, int]:
        """(free, total) bytes."""
        return self.device.memory_info()


@functools.cache
def device_memory() -> DeviceMemory:
    """The pool of the GPU that minllm uses."""
    return DeviceMemory(CudaMemory())


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A NumPy array in page-locked memory, which the GPU copies to and from by itself; freed with its last view."""
    from cuda.bindings import driver

    current_device()
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = max(1, count * dtype.itemsize)
    address = int(check_driver(driver.cuMemHostAlloc(nbytes, 0), f"lock {nbytes} bytes of host memory"))
    buffer = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(buffer, driver.cuMemFreeHost, address).atexit = False
    return np.frombuffer(buffer, np.uint8, count * dtype.itemsize).view(dtype).reshape(shape)
