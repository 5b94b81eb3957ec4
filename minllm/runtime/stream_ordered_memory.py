"""Stream-ordered allocation, which never waits for the GPU.

cuMemAllocAsync takes memory that was freed earlier in the same stream from a pool of the driver, without a call to the operating system;
cuMemFreeAsync does not wait either. The pool's release threshold is unlimited here; otherwise it would return its memory whenever the host
waits for the GPU. CUDA C++ Programming Guide, "Stream Ordered Memory Allocator".

An allocation on a stream in capture would become a node of the graph, but a graph's blocks must keep their addresses. So during a capture
memory comes from cuMemAlloc, and frees wait until the capture is over.
"""

from minllm.runtime.cuda_memory import CudaMemory
from minllm.runtime.device import check_driver
from minllm.runtime.stream import compute_stream, stream_handle

EVERYTHING = (1 << 64) - 1


class StreamOrderedMemory(CudaMemory):
    """CudaMemory that allocates and frees in the order of the compute stream."""

    def __init__(self):
        from cuda.bindings import driver

        super().__init__()
        self.stream = stream_handle(compute_stream())
        self.pool = check_driver(driver.cuDeviceGetDefaultMemPool(self.device.index), "find the device's memory pool")
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        status = driver.cuMemPoolSetAttribute(self.pool, threshold, driver.cuuint64_t(EVERYTHING))
        check_driver(status, "have the memory pool keep its memory")
        self._plain: set[int] = set()  # addresses allocated during a capture, by cuMemAlloc
        self._late: list[int] = []  # addresses dropped during a capture, to be freed after it

    def allocate(self, nbytes: int) -> int | None:
        """The address of memory for work launched from now on, or None if there is not enough."""
        from cuda.bindings import driver

        if self._is_capturing():
            pointer = super().allocate(nbytes)
            if pointer is not None:
                self._plain.add(pointer)
            return pointer
        self._free_late()
        if nbytes > self.device.total_memory:  # the driver's pool would reserve all free memory before it fails
            return None
        status, pointer = driver.cuMemAllocAsync(nbytes, self.stream)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            check_driver(driver.cuMemPoolTrimTo(self.pool, 0), "return what the memory pool reserved in vain")
            return None
        return int(check_driver((status, pointer), f"allocate {nbytes} bytes"))

    def free(self, pointer: int) -> None:
        """Free memory after the work launched so far; returns at once."""
        from cuda.bindings import driver

        if pointer in self._plain:
            self._plain.remove(pointer)
            super().free(pointer)
        elif self._is_capturing():
            self._late.append(pointer)
        else:
            self._free_late()
            check_driver(driver.cuMemFreeAsync(pointer, self.stream), "free memory")

    def trim(self) -> int:
        """Return the pool's unused memory to the driver; returns the number of bytes."""
        from cuda.bindings import driver

        self._free_late()
        check_driver(driver.cuStreamSynchronize(self.stream), "wait for the GPU")
        before, _ = self.info()
        check_driver(driver.cuMemPoolTrimTo(self.pool, 0), "trim the memory pool")
        return max(0, self.info()[0] - before)

    def _is_capturing(self) -> bool:
        from cuda.bindings import driver

        status = check_driver(driver.cuStreamIsCapturing(self.stream), "tell whether a graph is captured")
        return status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    def _free_late(self) -> None:
        from cuda.bindings import driver

        while self._late:
            check_driver(driver.cuMemFreeAsync(self._late.pop(), self.stream), "free memory")
