"""Virtual memory of the host: a backend of virtual_memory.py without a GPU.

The engine on a CPU keeps its virtual cache here, and tests of virtual_memory.py run here without a GPU. A newly mapped page holds garbage
(all bits set, NaN for floats), because the contents of a new page on a GPU are undefined.
"""

import itertools
import mmap

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import DeviceError

GARBAGE = 0xFF
MOST_ADDRESSES = 1 << 34  # largest range in bytes; some systems count reserved addresses as memory


class HostPages:
    """The interface of CudaPages, with at most `limit` pages (None: any number)."""

    def __init__(self, page_bytes: int = 1 << 16, limit: int | None = None):
        self.page_bytes, self.limit = page_bytes, limit
        self.num_created = 0  # pages that exist
        self._numbers = itertools.count()
        self._ranges: dict[int, tuple[mmap.mmap, np.ndarray]] = {}  # address -> its memory, as bytes

    def start_thread(self) -> None:
        """Nothing to do on a CPU."""

    def reserve(self, nbytes: int) -> int:
        """The first of `nbytes` reserved addresses; this takes no memory."""
        if not hasattr(mmap, "MAP_PRIVATE"):
            raise DeviceError('this system reserves no addresses without memory: take kv_cache_policy="paged"')
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            memory = mmap.mmap(-1, nbytes, flags=flags)
        except (OSError, ValueError) as error:
            raise DeviceError(f"{nbytes} bytes of addresses could not be reserved: {error}; lower max_num_seqs or max_model_len") from error
        view = np.frombuffer(memory, np.uint8)
        address = view.__array_interface__["data"][0]
        self._ranges[address] = memory, view
        return address

    def give_up(self, address: int, nbytes: int) -> None:
        """Drop a range; its memory is freed when the last array over it is dropped."""
        del self._ranges[address]

    def create(self) -> int | None:
        """The unique number of a new page, or None if the limit is reached."""
        if self.limit is not None and self.num_created >= self.limit:
            return None
        self.num_created += 1
        return next(self._numbers)

    def release(self, page: int) -> None:
        """Release a page."""
        self.num_created -= 1

    def map(self, address: int, page: int) -> None:
        """Put a page at an address: fill the memory there with garbage."""
        self.bytes_at(address, self.page_bytes)[:] = GARBAGE

    def allow(self, address: int, nbytes: int) -> None:
        """Nothing to do: reserved memory of the host is accessible."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Return the memory at some addresses to the operating system."""
        start, (memory, _) = self._range_of(address)
        first, last = -(-(address - start) // mmap.PAGESIZE), (address - start + nbytes) // mmap.PAGESIZE
        if hasattr(memory, "madvise") and last > first:
            memory.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def wait(self) -> None:
        """Nothing to do: no work is asynchronous on a CPU."""

    def array(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object) -> np.ndarray:
        """The array that begins at an address."""
        start, (_, view) = self._range_of(address)
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return view[address - start : address - start + count].view(dtype).reshape(shape)

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """Bytes of a reserved range, as a view."""
        start, (_, view) = self._range_of(address)
        return view[address - start : address - start + nbytes]

    def _range_of(self, address: int) -> tuple[int, tuple[mmap.mmap, np.ndarray]]:
        start = max(start for start in self._ranges if start <= address)
        return start, self._ranges[start]
