"""GPU memory of one process that other processes map, by CUDA IPC handles of 64 bytes.

A handle stands for a whole allocation of cuMemAlloc, so the memory is not taken from the pool, and fills whole pages. Both processes must
run on one host with GPUs that access each other's memory. Source: CUDA Driver API, cuIpcGetMemHandle and cuIpcOpenMemHandle.
"""

import ctypes
import functools
import weakref

from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_memory import CudaMemory
from minllm.runtime.device import check_driver

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
PAGE_BYTES = 2 << 20  # smaller allocations may share a page, and the other process would map the whole page


class ExportedMemory:
    """Zeroed memory on this process's GPU. `handle`: the bytes from which another process makes an ImportedMemory."""

    def __init__(self, nbytes: int):
        """Raises DeviceError if this GPU cannot share memory, or has too little."""
        from cuda.bindings import driver

        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        self.pointer = int(check_driver(driver.cuMemAlloc(size), f"allocate {size} bytes that peers map"))
        self.close = weakref.finalize(self, _free, self.pointer)
        stream = _other_stream()
        check_driver(driver.cuMemsetD8Async(self.pointer, 0, size, stream), "fill memory that peers map")
        check_driver(driver.cuStreamSynchronize(stream), "fill memory that peers map")  # peers may write as soon as they have the handle
        handle = check_driver(driver.cuIpcGetMemHandle(self.pointer), "share memory with other processes")
        self.handle = ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


class ImportedMemory:
    """The memory of another process, mapped into this one at `pointer`. Raises DeviceError if that fails."""

    def __init__(self, handle: bytes):
        from cuda.bindings import driver

        given = driver.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle, HANDLE_BYTES)
        lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
        self.pointer = int(check_driver(driver.cuIpcOpenMemHandle(given, lazily), "map the memory of another rank's GPU"))
        self.close = weakref.finalize(self, _unmap, self.pointer)


def array_at(pointer: int, size: int, dtype: object, owner: object) -> DeviceArray:
    """A one-dimensional array at an address; it keeps `owner` alive."""
    return DeviceArray(pointer, (size,), dtype, owner, CudaMemory())


def write_now(words: DeviceArray, number: int) -> None:
    """Overwrite 32-bit words with `number` while kernels run; any thread may call it."""
    from cuda.bindings import driver

    check_driver(driver.cuMemsetD32Async(words.pointer, number, words.size, _other_stream()), "write words that kernels read")


def read_word(word: DeviceArray) -> int:
    """The value of a 32-bit word while kernels run; any thread may call it."""
    from cuda.bindings import driver

    stream, found = _other_stream(), ctypes.c_uint32()
    check_driver(driver.cuMemcpyDtoHAsync(ctypes.addressof(found), word.pointer, ctypes.sizeof(found), stream), "read a fault")
    check_driver(driver.cuStreamSynchronize(stream), "read a fault")
    return found.value


def _other_stream() -> object:
    """The stream of everything here, usable in this thread from now on."""
    from minllm.runtime.device import current_device

    current_device()
    return _non_blocking_stream()


@functools.cache
def _non_blocking_stream() -> object:
    """This process's stream that does not synchronise with any other, created on the first call."""
    from cuda.bindings import driver

    return check_driver(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value), "create a stream")


def _free(pointer: int) -> None:
    from cuda.bindings import driver

    driver.cuMemFree(pointer)  # at the end of a process the context may be gone


def _unmap(pointer: int) -> None:
    from cuda.bindings import driver

    driver.cuIpcCloseMemHandle(pointer)
