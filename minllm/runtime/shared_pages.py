"""Pages of GPU memory that other processes map, by file descriptors.

Unlike a handle of exported_memory.py, which stands for a whole allocation, pages of several processes can be mapped side by side: an array
may begin on one GPU and end on another. Both processes must run on one host with GPUs that access each other's memory.

Source: CUDA driver API, "Virtual Memory Management", cuMemExportToShareableHandle and cuMemImportFromShareableHandle.
"""

from typing import Any

from minllm.errors import DeviceError
from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_pages import CudaPages
from minllm.runtime.device import check_driver
from minllm.runtime.kernel import check


class SharedPages(CudaPages):
    """CudaPages of `page_bytes` bytes, a multiple of the driver's size, which have file descriptors."""

    def __init__(self, page_bytes: int):
        """Raises KernelArgumentError for another size, and DeviceError if the driver has no virtual memory."""
        from cuda.bindings import driver

        super().__init__()
        check(page_bytes % self.page_bytes == 0, f"pages of {page_bytes} bytes; here they are multiples of {self.page_bytes} bytes")
        self.page_bytes, self.kind = page_bytes, driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.properties.requestedHandleTypes = self.kind

    def descriptor(self, page: Any) -> int:
        """A file descriptor of one's own page, for another process; the caller closes it."""
        from cuda.bindings import driver

        return int(check_driver(driver.cuMemExportToShareableHandle(page, self.kind, 0), "share a page of memory"))

    def opened(self, descriptor: int) -> Any:
        """The page of another process; the descriptor may be closed then."""
        from cuda.bindings import driver

        return check_driver(driver.cuMemImportFromShareableHandle(descriptor, self.kind), "open a page of another rank's memory")

    def side_by_side(self, pages: list[Any]) -> DeviceArray:
        """The pages as one array of bytes."""
        nbytes = len(pages) * self.page_bytes
        address = self.reserve(nbytes)
        end = address  # of what is mapped
        try:
            for page in pages:
                self.map(end, page)
                end += self.page_bytes
            self.allow(address, nbytes)
        except DeviceError:
            if end > address:
                self.unmap(address, end - address)
            self.give_up(address, nbytes)
            raise
        return self.array(address, (nbytes,), "uint8", None)

    def taken_apart(self, array: DeviceArray) -> None:
        """Unmap the pages of an array, which no kernel may use any more."""
        self.unmap(array.pointer, array.nbytes)
        self.give_up(array.pointer, array.nbytes)
