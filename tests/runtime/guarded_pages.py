"""Host pages that notice whoever touches what is not mapped, and a driver that can run out of memory or fail."""

from minllm.errors import DeviceError
from minllm.runtime.host_pages import HostPages

UNMAPPED = 0xA5  # in every byte behind which there is no page


class GuardedPages(HostPages):
    """HostPages that fill unmapped addresses with UNMAPPED and expect to find it there again."""

    def __init__(self, page_bytes: int = 64, limit: int | None = None):
        super().__init__(page_bytes, limit)
        self.mapped: dict[int, int] = {}  # address -> page
        self.log: list[str] = []
        self.map_fails_after: int | None = None  # so many further maps succeed

    def reserve(self, nbytes):
        address = super().reserve(nbytes)
        self.bytes_at(address, nbytes)[:] = UNMAPPED
        return address

    def give_up(self, address, nbytes):
        assert not any(address <= mapped < address + nbytes for mapped in self.mapped), "addresses were given up with pages behind them"
        assert (self.bytes_at(address, nbytes) == UNMAPPED).all(), "somebody wrote where nothing was mapped"
        super().give_up(address, nbytes)

    def release(self, page):
        assert page not in self.mapped.values(), "a page was released while it was mapped"
        super().release(page)

    def map(self, address, page):
        assert address not in self.mapped and page not in self.mapped.values(), "two mappings of one address or page"
        assert (self.bytes_at(address, self.page_bytes) == UNMAPPED).all(), "somebody wrote where nothing was mapped"
        if self.map_fails_after is not None:
            if self.map_fails_after == 0:
                raise DeviceError("the driver could not map a page of memory")
            self.map_fails_after -= 1
        super().map(address, page)
        self.mapped[address] = page
        self.log.append("map")

    def unmap(self, address, nbytes):
        for page in range(address, address + nbytes, self.page_bytes):
            del self.mapped[page]
        self.bytes_at(address, nbytes)[:] = UNMAPPED
        self.log.append("unmap")

    def wait(self):
        self.log.append("wait")

    def check_untouched(self):
        """Nobody wrote to an address without a page."""
        for start, (_, view) in self._ranges.items():
            for offset in range(0, view.size, self.page_bytes):
                if start + offset not in self.mapped:
                    assert (view[offset : offset + self.page_bytes] == UNMAPPED).all(), "somebody wrote where nothing was mapped"
