"""The measured memory ceiling of this GPU: the rate of a large copy, with which memory-bound kernels are compared.

The driver copies between two arrays far larger than the L2 cache. Bytes read and bytes written both count. The time is the median of many
copies, from events on the stream, after a warm-up that raises the clocks.
"""

import statistics

import numpy as np

BYTES = 2**31  # size of each of the two arrays; sixteen times the largest L2 cache
REPEATS = 20


def copy_tb_s(most_bytes: int = BYTES, repeats: int = REPEATS) -> float:
    """TB/s, read plus written, of a device-to-device copy.

    It copies `most_bytes`, or a quarter of the free memory if that is less. Raises DeviceError if the driver fails.
    """
    from cuda.bindings import driver as cuda

    from minllm.runtime.device import check_driver, current_device

    current_device()
    source, target, events = None, None, []
    try:
        free, _ = check_driver(cuda.cuMemGetInfo(), "tell the free memory")
        total_bytes = min(most_bytes, free // 4) // 4096 * 4096
        source = check_driver(cuda.cuMemAlloc(total_bytes), f"allocate {total_bytes} bytes")
        target = check_driver(cuda.cuMemAlloc(total_bytes), f"allocate {total_bytes} bytes")
        fill_with_noise(source, total_bytes)
        events = [check_driver(cuda.cuEventCreate(0), "make an event") for _ in range(repeats + 4)]
        for event in events:
            check_driver(cuda.cuEventRecord(event, 0), "record an event")
            check_driver(cuda.cuMemcpyDtoDAsync(target, source, total_bytes, 0), "copy")
        check_driver(cuda.cuCtxSynchronize(), "wait for the copies")
        pairs = list(zip(events[3:-1], events[4:], strict=True))  # the first three copies warm up
        seconds = [1e-3 * check_driver(cuda.cuEventElapsedTime(a, b), "read the time") for a, b in pairs]
        return 2 * total_bytes / statistics.median(seconds) / 1e12
    finally:
        for event in events:
            cuda.cuEventDestroy(event)
        for allocation in (source, target):
            if allocation is not None:
                cuda.cuMemFree(allocation)


def fill_with_noise(allocation, total_bytes: int) -> None:
    """Fill device memory with random bytes, repeated; zeros are cheaper to move and would overstate the rate."""
    from cuda.bindings import driver as cuda

    from minllm.runtime.device import check_driver

    noise = np.random.default_rng(0).integers(0, 256, min(2**26, total_bytes), dtype=np.uint8)
    for start in range(0, total_bytes, len(noise)):
        count = min(len(noise), total_bytes - start)
        check_driver(cuda.cuMemcpyHtoD(int(allocation) + start, noise.ctypes.data, count), "fill the source")
