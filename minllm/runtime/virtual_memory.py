"""Virtual memory: addresses are reserved at once, pages mapped when needed.

    pages = PagePool(CudaPages(), limit=1000)         # up to 1,000 pages of 2 MB
    memory = VirtualRange(pages, nbytes=1 << 40)      # addresses only: a terabyte takes no memory
    memory.map(0, 3)                                  # the first 6 MB are backed by memory now
    array = memory.array((1024, 1024), np.float16)    # kernels see ordinary addresses
    memory.unmap(2, 1)

A kernel that touches an unmapped address fails with an illegal access, which destroys the process's CUDA context. So before pages are
unmapped, all work that may use them must have finished.

The backend is cuda_pages.CudaPages, or host_pages.HostPages for the engine on a CPU and for tests.
"""

import contextlib
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import MinLLMError, OutOfMemoryError, VirtualMemoryError


class PagePool:
    """A pool of at most `limit` physical pages. Returned pages are reused; `trim` releases them."""

    def __init__(self, backend: Any, limit: int):
        self.backend, self.limit = backend, limit
        self.created = 0  # pages that exist
        self._idle: list[Any] = []  # created pages that are not mapped

    @property
    def page_bytes(self) -> int:
        """Bytes per page."""
        return self.backend.page_bytes

    @property
    def in_use(self) -> int:
        """Pages that have been taken and not given back."""
        return self.created - len(self._idle)

    @property
    def left(self) -> int:
        """Pages that can still be taken, if the machine has the memory."""
        return self.limit - self.in_use

    def take(self) -> Any:
        """A page. Raises OutOfMemoryError if the limit is reached or the machine has no more memory."""
        if self._idle:
            return self._idle.pop()
        page = self.backend.create() if self.created < self.limit else None
        if page is None:
            raise OutOfMemoryError(
                f"a page of {self.page_bytes / 2**20:g} MiB was asked for; {self.created} of at most {self.limit} are in use and the "
                "machine gives no more: free sequences, or end other programs that have its memory"
            )
        self.created += 1
        return page

    def give_back(self, page: Any) -> None:
        """Return an unmapped page to the pool."""
        self._idle.append(page)

    def trim(self) -> int:
        """Release the idle pages to the machine; returns their number."""
        count = len(self._idle)
        while self._idle:
            self.backend.release(self._idle.pop())
        self.created -= count
        return count

    def __del__(self):
        with contextlib.suppress(Exception):  # the driver may have shut down at the end of the process
            self.trim()


class VirtualRange:
    """A range of reserved addresses, with pages mapped into parts of it."""

    def __init__(self, pages: PagePool, nbytes: int):
        self.pages, self.page_bytes = pages, pages.page_bytes
        self.num_pages = -(-nbytes // self.page_bytes)
        self.nbytes = self.num_pages * self.page_bytes
        self.address: int | None = None  # None before addresses are reserved, and after `close`
        self._mapped: dict[int, Any] = {}  # page number -> physical page
        self.address = pages.backend.reserve(self.nbytes)

    @property
    def num_mapped(self) -> int:
        """The number of mapped pages."""
        return len(self._mapped)

    def is_mapped(self, first: int, count: int = 1) -> bool:
        """Whether all of these pages are mapped."""
        return all(page in self._mapped for page in range(first, first + count))

    def map(self, first: int, count: int = 1) -> None:
        """Map the pages `first` to `first + count - 1`; if this raises, none of them is mapped.

        Raises OutOfMemoryError, or VirtualMemoryError for a page that is already mapped or outside the range.
        """
        self._check(first, count, mapped=False)
        backend, taken, num_mapped = self.pages.backend, [], 0
        try:
            for number in range(first, first + count):
                taken.append(self.pages.take())
                backend.map(self._address_of(number), taken[-1])
                num_mapped += 1
            if taken:
                backend.allow(self._address_of(first), count * self.page_bytes)
        except MinLLMError:
            if num_mapped:
                backend.unmap(self._address_of(first), num_mapped * self.page_bytes)
            for page in taken:
                self.pages.give_back(page)
            raise
        self._mapped.update(zip(range(first, first + count), taken, strict=True))

    def unmap(self, first: int, count: int = 1) -> None:
        """Wait for all work on the GPU, unmap pages and return them to the pool. Raises VirtualMemoryError if one is not mapped."""
        self._check(first, count, mapped=True)
        if count:
            self.pages.backend.wait()
            self.pages.backend.unmap(self._address_of(first), count * self.page_bytes)
        for number in range(first, first + count):
            self.pages.give_back(self._mapped.pop(number))

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """An array at the start of the range, whether it is mapped or not. Raises VirtualMemoryError if it does not fit."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes > self.nbytes:
            raise VirtualMemoryError(f"an array of {nbytes} bytes does not fit a range of {self.nbytes}: reserve more")
        return self.pages.backend.array(self.address, shape, dtype, self)

    def close(self) -> None:
        """Unmap everything and free the addresses; arrays over them become invalid."""
        if self.address is None:
            return
        for number in sorted(self._mapped):
            self.unmap(number)
        self.pages.backend.give_up(self.address, self.nbytes)
        self.address = None

    def __del__(self):
        with contextlib.suppress(Exception):  # the driver may have shut down at the end of the process
            self.close()

    def _address_of(self, number: int) -> int:
        return self.address + number * self.page_bytes

    def _check(self, first: int, count: int, mapped: bool) -> None:
        if self.address is None:
            raise VirtualMemoryError("the range was closed: reserve a new one")
        if first < 0 or count < 0 or first + count > self.num_pages:
            raise VirtualMemoryError(f"pages {first} to {first + count - 1} are not all in a range of {self.num_pages} pages")
        wrong = [number for number in range(first, first + count) if (number in self._mapped) != mapped]
        if wrong:
            state = "mapped already" if not mapped else "not mapped"
            raise VirtualMemoryError(f"page {wrong[0]} is {state}: nobody may {'unmap' if mapped else 'map'} it")
