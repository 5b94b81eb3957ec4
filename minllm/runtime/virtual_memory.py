"""Virtual memory: a range of addresses is reserved at once, and physical pages are put behind parts of it when they are needed.

    pages = PagePool(CudaPages(), limit=1000)         # up to 1,000 pages of 2 MB
    memory = VirtualRange(pages, nbytes=1 << 40)      # addresses only: a terabyte costs nothing
    memory.map(0, 3)                                  # behind the first 6 MB there is memory now
    array = memory.array((1024, 1024), np.float16)    # kernels see ordinary addresses
    memory.unmap(2, 1)

A kernel that touches an address without a page dies of an illegal access, and with it the process's context: whoever unmaps makes sure
that nothing launched before is still running.

`backend` is what touches the machine: cuda_pages.CudaPages, or host_pages.HostPages for the engine on a CPU and for tests.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minllm.errors import MinLLMError, OutOfMemoryError, VirtualMemoryError


class PagePool:
    """Physical pages, at most `limit` of them. A page that is given back is kept for the next who asks, until `trim`."""

    def __init__(self, backend: Any, limit: int):
        self.backend, self.limit = backend, limit
        self.created = 0  # pages that exist
        self._idle: list[Any] = []  # of those, the ones that are mapped nowhere

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.backend.page_bytes

    @property
    def in_use(self) -> int:
        """Pages that somebody has mapped."""
        return self.created - len(self._idle)

    @property
    def left(self) -> int:
        """Pages that may still be taken, if the machine has them."""
        return self.limit - self.in_use

    def take(self) -> Any:
        """A page. Raises OutOfMemoryError beyond the limit, or where the machine has no more."""
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
        """Keep a page that is mapped nowhere any more."""
        self._idle.append(page)

    def trim(self) -> int:
        """Give the idle pages back to the machine; how many that were."""
        count = len(self._idle)
        while self._idle:
            self.backend.release(self._idle.pop())
        self.created -= count
        return count

    def __del__(self):
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            self.trim()


class VirtualRange:
    """Reserved addresses, a page each behind some of them.

    `on_unmap` is called before pages are taken away, and returns once nobody can touch them any more; by default it waits for
    everything that was launched on the GPU.
    """

    def __init__(self, pages: PagePool, nbytes: int, on_unmap: Callable[[], None] | None = None):
        self.pages, self.page_bytes = pages, pages.page_bytes
        self.num_pages = -(-nbytes // self.page_bytes)
        self.nbytes = self.num_pages * self.page_bytes
        self.address: int | None = None  # until they are reserved, and after `close`
        self._mapped: dict[int, Any] = {}  # page number -> the physical page behind it
        self._on_unmap = on_unmap or pages.backend.wait
        self.address = pages.backend.reserve(self.nbytes)

    @property
    def num_mapped(self) -> int:
        """How many pages are behind the range."""
        return len(self._mapped)

    def is_mapped(self, first: int, count: int = 1) -> bool:
        """Whether all of these pages are there."""
        return all(page in self._mapped for page in range(first, first + count))

    def map(self, first: int, count: int = 1) -> None:
        """Put pages behind page numbers first to first + count; all of them or, if it raises, none.

        Raises OutOfMemoryError, or VirtualMemoryError for a page that is mapped already or outside of the range.
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
        """Take pages away and give them to the pool, once nothing can touch them any more. VirtualMemoryError if one is not there."""
        self._check(first, count, mapped=True)
        if count:
            self._on_unmap()
            self.pages.backend.unmap(self._address_of(first), count * self.page_bytes)
        for number in range(first, first + count):
            self.pages.give_back(self._mapped.pop(number))

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array over the range from its first address on, mapped or not."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes > self.nbytes:
            raise VirtualMemoryError(f"an array of {nbytes} bytes does not fit a range of {self.nbytes}: reserve more")
        return self.pages.backend.array(self.address, shape, dtype, self)

    def close(self) -> None:
        """Unmap everything and give the addresses back; arrays over the range are of no use any more. Twice does no harm."""
        if self.address is None:
            return
        for number in sorted(self._mapped):
            self.unmap(number)
        self.pages.backend.give_up(self.address, self.nbytes)
        self.address = None

    def __del__(self):
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
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
