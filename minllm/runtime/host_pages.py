"""Virtual memory played by the host's: addresses that the operating system backs with memory only where they are touched.

The engine on a CPU keeps its virtual cache here, and the logic above is tested here without a GPU. A page that is mapped holds garbage
(all bits set, NaN for floats), as on a GPU nobody promises what is in it.
"""

import itertools
import mmap
from typing import Any

import numpy as np

from minllm.errors import DeviceError

GARBAGE = 0xFF
MOST_ADDRESSES = 1 << 34  # bytes of one range: some systems count addresses as if they were memory


class HostPages:
    """A backend of virtual_memory: `page_bytes` and what CudaPages can do, for at most `limit` pages at a time (None: any number)."""

    def __init__(self, page_bytes: int = 1 << 16, limit: int | None = None):
        self.page_bytes, self.limit = page_bytes, limit
        self.num_created = 0  # and not released since
        self._numbers = itertools.count()
        self._ranges: dict[int, tuple[mmap.mmap, np.ndarray]] = {}  # address -> its memory, as bytes

    def start_thread(self) -> None:
        """Nothing to do on a CPU."""

    def reserve(self, nbytes: int) -> int:
        """The first of `nbytes` addresses; no memory is taken."""
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
        """Forget a range; its memory goes when the last array over it is dropped."""
        del self._ranges[address]

    def create(self) -> int | None:
        """The number of a new page, which no other ever had, or None beyond the limit."""
        if self.limit is not None and self.num_created >= self.limit:
            return None
        self.num_created += 1
        return next(self._numbers)

    def release(self, page: int) -> None:
        """One page less."""
        self.num_created -= 1

    def map(self, address: int, page: int) -> None:
        """From now on there is a page, full of garbage."""
        self.bytes_at(address, self.page_bytes)[:] = GARBAGE

    def allow(self, address: int, nbytes: int) -> None:
        """The operating system allows what was reserved."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Give the memory behind addresses back to the operating system."""
        start, (memory, _) = self._range_of(address)
        first, last = -(-(address - start) // mmap.PAGESIZE), (address - start + nbytes) // mmap.PAGESIZE
        if hasattr(memory, "madvise") and last > first:
            memory.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def wait(self) -> None:
        """Nothing runs beside the caller."""

    def array(self, address: int, shape: tuple[int, ...], dtype: Any, owner: Any) -> np.ndarray:
        """The array that begins at an address."""
        start, (_, view) = self._range_of(address)
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return view[address - start : address - start + count].view(dtype).reshape(shape)

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray:
        """Some bytes of a reserved range, as they are in memory."""
        start, (_, view) = self._range_of(address)
        return view[address - start : address - start + nbytes]

    def _range_of(self, address: int) -> tuple[int, tuple[mmap.mmap, np.ndarray]]:
        start = max(start for start in self._ranges if start <= address)
        return start, self._ranges[start]
