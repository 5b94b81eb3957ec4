"""Device memory: a caching pool or the driver's own, and page-locked host memory.

An allocation by the driver takes up to a millisecond, a free waits for the GPU, and a forward pass needs a dozen temporaries per layer. So
the pool keeps freed blocks in lists by size and reuses them. All kernels run in one order (in one stream, and the default stream waits for
it), so a block may be reused as soon as Python has dropped its last reference: its next writer runs after all kernels launched before.

There are three modes of allocation (ALLOCATIONS), which `minllm bench memory` compares:

    pool            these lists over cuMemAlloc: the default
    synchronous     cuMemAlloc and cuMemFree for every array, as in a first CUDA program; a free waits until the GPU is idle
    stream_ordered  cuMemAllocAsync and cuMemFreeAsync: the driver keeps a pool, in stream order
"""

import contextlib
import ctypes
import functools
import math
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import CaptureError, InvalidOptionError, OutOfMemoryError
from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_memory import CudaMemory
from minllm.runtime.device import check_driver, current_device

ALLOCATIONS = ("pool", "synchronous", "stream_ordered")
SMALLEST_BLOCK = 512  # bytes; also the alignment of every array
LARGE_STEP = 2 << 20  # bytes; sizes of large blocks are multiples of this, as in the driver


def block_size_for(nbytes: int) -> int:
    """The size of a block: a power of two up to 1 MiB, then a multiple of 2 MiB."""
    if nbytes <= LARGE_STEP // 2:
        return max(SMALLEST_BLOCK, 1 << max(0, nbytes - 1).bit_length())
    return -(-nbytes // LARGE_STEP) * LARGE_STEP


class Block:
    """A block of device memory; it returns to its pool when the last array that uses it is dropped."""

    __slots__ = ("pointer", "size", "pool")

    def __init__(self, pointer: int, size: int, pool: "DeviceMemory"):
        self.pointer, self.size, self.pool = pointer, size, pool

    def __del__(self):
        self.pool.take_back(self.pointer, self.size)


class GraphBlocks:
    """Blocks of a captured graph, or of several of which one runs at a time. Nothing else uses them until they are released."""

    def __init__(self):
        self.sizes: dict[int, int] = {}  # address -> size
        self.free: dict[int, list[int]] = defaultdict(list)  # block size -> addresses that a capture may reuse

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self.sizes.values())

    def take(self, size: int) -> int | None:
        """The address of the smallest free block of at least `size` bytes; None if there is none."""
        fitting = min((at_least for at_least, free in self.free.items() if free and at_least >= size), default=None)
        return None if fitting is None else self.free[fitting].pop()


class DeviceMemory:
    """A pool of blocks from `memory`: CudaMemory, or in tests a version in host memory.

    caching: False frees every dropped block at once, except those dropped while a graph is captured.
    """

    def __init__(self, memory: Any, caching: bool = True):
        self.memory, self.caching = memory, caching
        self.free: dict[int, list[int]] = defaultdict(list)  # block size -> addresses
        self.bytes_in_use = 0
        self.bytes_cached = 0
        self.owner: dict[int, GraphBlocks] = {}  # address of a graph's block -> the blocks of that graph
        self.capturing: GraphBlocks | None = None

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """An array with unspecified contents. Raises OutOfMemoryError."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        block = self.allocate(block_size_for(nbytes))
        return DeviceArray(block.pointer, shape, dtype, block, self.memory)

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """An array of zeros. Raises CaptureError during a capture: a replay would not fill the array again."""
        if self.capturing is not None:
            raise CaptureError(f"zeros of shape {shape} are not made while a graph is captured: call the function once before")
        array = self.empty(shape, dtype)
        array.fill_bytes(0)
        return array

    def array(self, host: np.ndarray) -> DeviceArray:
        """A copy of a NumPy array."""
        array = self.empty(host.shape, host.dtype)
        array.copy_from_host(host)
        return array

    def allocate(self, size: int) -> Block:
        """A cached block of `size` bytes (from block_size_for) if there is one, else a new one. Raises OutOfMemoryError."""
        if self.capturing is not None and (pointer := self.capturing.take(size)) is not None:
            return Block(pointer, self.capturing.sizes[pointer], self)
        if self.free[size]:
            pointer = self.free[size].pop()
            self.bytes_cached -= size
        else:
            pointer = self.new_block(size)
        self.bytes_in_use += size
        if self.capturing is not None:
            self.owner[pointer] = self.capturing
            self.capturing.sizes[pointer] = size
        return Block(pointer, size, self)

    def new_block(self, size: int) -> int:
        """The address of new memory, after a `trim` if needed. Raises OutOfMemoryError."""
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
        return pointer

    def take_back(self, pointer: int, size: int) -> None:
        """Cache or free a block that no array uses any more; a graph's block is cached for that graph."""
        if pointer in self.owner:
            self.owner[pointer].free[size].append(pointer)
        elif not self.caching and self.capturing is None:
            self.bytes_in_use -= size
            self.memory.free(pointer)
        else:
            self.free[size].append(pointer)
            self.bytes_in_use -= size
            self.bytes_cached += size

    def trim(self) -> int:
        """Return all cached blocks to the driver; returns the number of bytes."""
        freed, self.bytes_cached = self.bytes_cached, 0
        for pointers in self.free.values():
            while pointers:
                self.memory.free(pointers.pop())
        return freed + self.memory.trim()

    @contextlib.contextmanager
    def capture(self, graph: Any, shared: GraphBlocks | None = None) -> Iterator[None]:
        """Within this context new blocks belong to `graph` until it is dropped, or to `shared` until that is released."""
        self.capturing = blocks = GraphBlocks() if shared is None else shared
        try:
            yield
        except BaseException:
            if shared is None:
                self.release(blocks)
            raise
        finally:
            self.capturing = None
        if shared is None:
            weakref.finalize(graph, self.release, blocks).atexit = False

    def release(self, blocks: GraphBlocks) -> None:
        """Make the blocks available for general reuse: the free ones now, the others when they are dropped."""
        for pointer in blocks.sizes:
            del self.owner[pointer]
        for size, pointers in blocks.free.items():
            for pointer in pointers:
                self.take_back(pointer, size)


def device_memory(allocation: str | None = None) -> DeviceMemory:
    """The DeviceMemory for one of ALLOCATIONS; the default is $MINLLM_ALLOCATION, or the pool.

    Raises InvalidOptionError for another name.
    """
    allocation = allocation or os.environ.get("MINLLM_ALLOCATION") or "pool"
    if allocation not in ALLOCATIONS:
        raise InvalidOptionError(f"allocation={allocation!r} is not allowed: it is one of {', '.join(ALLOCATIONS)}.")
    return _device_memory(allocation)


@functools.cache
def _device_memory(allocation: str) -> DeviceMemory:
    if allocation == "stream_ordered":
        from minllm.runtime.stream_ordered_memory import StreamOrderedMemory

        return DeviceMemory(StreamOrderedMemory(), caching=False)
    return DeviceMemory(CudaMemory(), caching=allocation == "pool")


def pinned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """A NumPy array in page-locked (pinned) memory, for asynchronous copies; freed with its last view.

    Raises OutOfMemoryError if the host cannot lock that much memory.
    """
    from cuda.bindings import driver

    current_device()
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    nbytes = max(1, count * dtype.itemsize)
    status, *pointer = driver.cuMemHostAlloc(nbytes, 0)
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise OutOfMemoryError(
            f"{nbytes / 2**20:.1f} MiB of host memory were to be page-locked, and the driver gives no more: end other programs, raise the "
            "limit of locked memory (ulimit -l), or use pageable memory (pinned=False)"
        )
    address = int(check_driver((status, *pointer), f"lock {nbytes} bytes of host memory"))
    buffer = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(buffer, driver.cuMemFreeHost, address).atexit = False
    return np.frombuffer(buffer, np.uint8, count * dtype.itemsize).view(dtype).reshape(shape)


def empty(shape: int | Sequence[int], dtype: DTypeLike) -> DeviceArray:
    """An array on the GPU with unspecified contents. Raises OutOfMemoryError, or DeviceError without a GPU."""
    return device_memory().empty(shape, dtype)


def to_device(host: np.ndarray) -> DeviceArray:
    """A copy of a NumPy array on the GPU."""
    return device_memory().array(np.ascontiguousarray(host))
