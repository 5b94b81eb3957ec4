"""GPU memory of one process that others map: CUDA's interprocess handles, 64 bytes that any channel carries.

A handle names a whole allocation of cuMemAlloc, so the memory is allocated by itself and not in the pool, in pages of its own. Source: CUDA
Driver API, cuIpcGetMemHandle and cuIpcOpenMemHandle; both processes must run on one host, whose GPUs access each other's memory.
"""

import ctypes
import weakref

from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_memory import CudaMemory
from minllm.runtime.device import check_driver

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
PAGE_BYTES = 2 << 20  # smaller allocations may share a page, which would be mapped whole


class ExportedMemory:
    """Memory of zeros on this process's GPU. `handle`: what another process opens it with."""

    def __init__(self, nbytes: int):
        """Raises DeviceError if this GPU cannot share memory, or has too little."""
        from cuda.bindings import driver

        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        self.pointer = int(check_driver(driver.cuMemAlloc(size), f"allocate {size} bytes that peers map"))
        self.close = weakref.finalize(self, _free, self.pointer)
        check_driver(driver.cuMemsetD8(self.pointer, 0, size), "fill memory that peers map")
        handle = check_driver(driver.cuIpcGetMemHandle(self.pointer), "share memory with other processes")
        self.handle = ctypes.string_at(handle.getPtr(), HANDLE_BYTES)


class ImportedMemory:
    """The memory of another process, at an address of this one. Raises DeviceError if it cannot be reached."""

    def __init__(self, handle: bytes):
        from cuda.bindings import driver

        given = driver.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle, HANDLE_BYTES)
        lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
        self.pointer = int(check_driver(driver.cuIpcOpenMemHandle(given, lazily), "map the memory of another rank's GPU"))
        self.close = weakref.finalize(self, _unmap, self.pointer)


def array_at(pointer: int, size: int, dtype: object, owner: object) -> DeviceArray:
    """A one-dimensional array at an address; `owner` lives as long as the array."""
    return DeviceArray(pointer, (size,), dtype, owner, CudaMemory())


def note_fault(fault: DeviceArray, number: int) -> None:
    """Overwrite a word while kernels run; any thread may call it."""
    from cuda.bindings import driver

    check_driver(driver.cuMemsetD32Async(fault.pointer, number, 1, _other_stream()), "note a fault")


def read_word(word: DeviceArray) -> int:
    """The value of a word while kernels run; any thread may call it."""
    from cuda.bindings import driver

    stream, found = _other_stream(), ctypes.c_uint32()
    check_driver(driver.cuMemcpyDtoHAsync(ctypes.addressof(found), word.pointer, ctypes.sizeof(found), stream), "read a fault")
    check_driver(driver.cuStreamSynchronize(stream), "read a fault")
    return found.value


def _other_stream() -> object:
    """A stream that waits for no other."""
    from cuda.bindings import driver

    from minllm.runtime.device import current_device

    current_device()
    return check_driver(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value), "create a stream")


def _free(pointer: int) -> None:
    from cuda.bindings import driver

    driver.cuMemFree(pointer)  # at the end of a process the context may be gone


def _unmap(pointer: int) -> None:
    from cuda.bindings import driver

    driver.cuIpcCloseMemHandle(pointer)
