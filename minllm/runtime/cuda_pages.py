"""Virtual addresses and pages of a GPU: a backend of virtual_memory.py.

cuMemCreate creates a page, cuMemMap maps it at an address, cuMemSetAccess gives the GPU access; cuMemUnmap and cuMemRelease undo this.
Mapping does not wait for running kernels.

Source: CUDA driver API, "Virtual Memory Management".
"""

from typing import Any

from numpy.typing import DTypeLike

from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_memory import CudaMemory
from minllm.runtime.device import check_driver, current_device


class CudaPages:
    """Addresses and pages of the current GPU; pages have the driver's smallest size, 2 MB."""

    def __init__(self):
        from cuda.bindings import driver

        self.device = current_device()
        self.memory = CudaMemory()  # copies and fills
        self.properties = driver.CUmemAllocationProp()
        self.properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.properties.location.id = self.device.index
        self.access = driver.CUmemAccessDesc()
        self.access.location = self.properties.location
        self.access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        size = check_driver(driver.cuMemGetAllocationGranularity(self.properties, smallest), "tell the size of a page")
        self.page_bytes = self.alignment = int(size)

    def start_thread(self) -> None:
        """Make the device current in the calling thread."""
        self.device.make_current()

    def reserve(self, nbytes: int) -> int:
        """The first of `nbytes` reserved addresses."""
        from cuda.bindings import driver

        return int(check_driver(driver.cuMemAddressReserve(nbytes, self.alignment, 0, 0), f"reserve {nbytes} bytes of addresses"))

    def give_up(self, address: int, nbytes: int) -> None:
        """Free reserved addresses; nothing may be mapped there."""
        from cuda.bindings import driver

        check_driver(driver.cuMemAddressFree(address, nbytes), "free reserved addresses")

    def create(self) -> Any:
        """A page of physical memory, or None if there is none left."""
        from cuda.bindings import driver

        status, page = driver.cuMemCreate(self.page_bytes, self.properties, 0)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return None
        return check_driver((status, page), "create a page of memory")

    def release(self, page: Any) -> None:
        """Return a page to the driver."""
        from cuda.bindings import driver

        check_driver(driver.cuMemRelease(page), "release a page of memory")

    def map(self, address: int, page: Any) -> None:
        """Map a page at an address; the GPU may use it after `allow`."""
        from cuda.bindings import driver

        check_driver(driver.cuMemMap(address, self.page_bytes, 0, page, 0), "map a page of memory")

    def allow(self, address: int, nbytes: int) -> None:
        """Let the GPU read and write mapped pages."""
        from cuda.bindings import driver

        check_driver(driver.cuMemSetAccess(address, nbytes, [self.access], 1), "set the access to mapped memory")

    def unmap(self, address: int, nbytes: int) -> None:
        """Unmap the pages at some addresses."""
        from cuda.bindings import driver

        check_driver(driver.cuMemUnmap(address, nbytes), "unmap memory")

    def wait(self) -> None:
        """Wait for all kernels and copies launched earlier."""
        from cuda.bindings import driver

        check_driver(driver.cuCtxSynchronize(), "wait for the GPU")

    def array(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object) -> DeviceArray:
        """The array that begins at an address; it keeps `owner` alive."""
        return DeviceArray(address, shape, dtype, owner, self.memory)
