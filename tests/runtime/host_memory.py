"""Device memory played by the host's, so that the pool and the arrays can be tested without a GPU."""

import ctypes

import numpy as np


class HostMemory:
    """Allocates, frees, copies and fills like cuda_memory.CudaMemory, with a limit on what it gives out."""

    def __init__(self, limit: int = 1 << 30):
        self.limit = limit
        self.buffers: dict[int, np.ndarray] = {}
        self.bytes_given = 0  # what is allocated now

    def allocate(self, nbytes: int) -> int | None:
        """The address of new memory full of 0xFF (NaN for floats), or None beyond the limit."""
        if self.bytes_given + nbytes > self.limit:
            return None
        buffer = np.full(nbytes, 0xFF, np.uint8)
        self.buffers[buffer.ctypes.data] = buffer
        self.bytes_given += nbytes
        return buffer.ctypes.data

    def free(self, pointer: int) -> None:
        """Forget the memory; KeyError if it was not given out."""
        self.bytes_given -= len(self.buffers.pop(pointer))

    def copy_to_device(self, pointer: int, address: int, nbytes: int) -> None:
        """memcpy."""
        ctypes.memmove(pointer, address, nbytes)

    def copy_to_host(self, address: int, pointer: int, nbytes: int) -> None:
        """memcpy."""
        ctypes.memmove(address, pointer, nbytes)

    def fill(self, pointer: int, value: int, nbytes: int) -> None:
        """memset."""
        ctypes.memset(pointer, value, nbytes)

    def trim(self) -> int:
        """Nothing is kept."""
        return 0

    def info(self) -> tuple[int, int]:
        """(free, total)."""
        return self.limit - self.bytes_given, self.limit
