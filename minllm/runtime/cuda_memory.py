"""Allocation, copies and fills of device memory by the driver, for the pool in memory.py."""

from minllm.runtime.device import check_driver, current_device


class CudaMemory:
    """Allocation, copies and fills through the driver.

    Copies and fills use the legacy default stream: it waits for kernels launched earlier, and later kernels wait for it.
    """

    def __init__(self):
        self.device = current_device()

    def allocate(self, nbytes: int) -> int | None:
        """The address of new memory, or None if there is not enough."""
        from cuda.bindings import driver

        status, pointer = driver.cuMemAlloc(nbytes)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return None
        return int(check_driver((status, pointer), f"allocate {nbytes} bytes"))

    def free(self, pointer: int) -> None:
        """Free memory; waits until the GPU is idle."""
        from cuda.bindings import driver

        check_driver(driver.cuMemFree(pointer), "free memory")

    def copy_to_device(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy from host to device."""
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyHtoD(pointer, address, nbytes), f"copy {nbytes} bytes to the GPU")

    def copy_to_host(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy from device to host."""
        from cuda.bindings import driver

        check_driver(driver.cuMemcpyDtoH(address, pointer, nbytes), f"copy {nbytes} bytes from the GPU")

    def fill(self, pointer: int, value: int, nbytes: int) -> None:
        """Set every byte."""
        from cuda.bindings import driver

        check_driver(driver.cuMemsetD8(pointer, value, nbytes), f"fill {nbytes} bytes")

    def info(self) -> tuple[int, int]:
        """(free, total) bytes."""
        return self.device.memory_info()

    def trim(self) -> int:
        """Bytes returned to the driver: none, because nothing is cached here."""
        return 0
