"""Compares memory modes: the cost of an allocation and the speed of copies.

Allocation: an array is allocated, a kernel writes it, it is freed; the result is the median of the host's time. Copies: between host and
device, from page-locked ("pinned") and pageable memory, each started and waited for; the result is the median.

Copies are measured first. The driver clears memory that is freed with cuMemFree, apparently with the DMA engine for copies to the GPU: on
an H200 for 2.5 ms per GiB, in slices of 1 ms, and a copy to the GPU waits for the end of a slice, whatever its size. After synchronous
allocations had freed 100 GB, copies of 64 KiB ran at 0.06 GB/s instead of 6 for a fifth of a second. Copies from the GPU do not wait.
"""

import statistics
import time
from pathlib import Path

import numpy as np
from rich.table import Table

from minllm.bench.record import Row, console, write_rows
from minllm.runtime.device import check_driver, current_device
from minllm.runtime.memory import ALLOCATIONS, DeviceMemory, device_memory, pinned_empty

ALLOCATION_BYTES = (1 << 12, 1 << 18, 1 << 24, 1 << 29)
COPY_BYTES = (1 << 16, 1 << 20, 1 << 26, 1 << 29)
TURNS = 200


def run(json_file: Path | None) -> None:
    """Measure and print; if `json_file` is given, write the record. Raises DeviceError without a GPU."""
    out = console(json_file)
    device, rows = current_device().name, []
    table = Table("copy", "pinned to GPU", "pageable to GPU", "GPU to pinned", "GPU to pageable")
    for nbytes in COPY_BYTES:
        cases = [(way, kind) for way in ("to GPU", "from GPU") for kind in ("pinned", "pageable")]
        rates = {f"{way}, {kind}": copy_gb_s(nbytes, way, kind == "pinned") for way, kind in cases}
        table.add_row(size(nbytes), *(f"{rate:.1f} GB/s" for rate in rates.values()))
        rows += [Row("host copy", f"{size(nbytes)} {name}", "driver", round(rate, 2), "GB/s") for name, rate in rates.items()]
    out.print(table)
    table = Table("allocate, write, drop", *(name.replace("_", " ") for name in ALLOCATIONS))
    for nbytes in ALLOCATION_BYTES:
        costs = [allocation_microseconds(device_memory(name), nbytes) for name in ALLOCATIONS]
        table.add_row(size(nbytes), *(f"{cost:.1f} µs" for cost in costs))
        rows += [Row("allocation", size(nbytes), name, round(cost, 1), "µs") for name, cost in zip(ALLOCATIONS, costs, strict=True)]
    out.print(table)
    write_rows(json_file, device, {}, rows)


def size(nbytes: int) -> str:
    """A number of bytes as text, in KiB or MiB."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def allocation_microseconds(memory: DeviceMemory, nbytes: int, turns: int = TURNS) -> float:
    """Median host time, in microseconds, to allocate `nbytes`, launch a kernel that writes them, and free them."""
    from minllm.runtime.stream import compute_stream, fill_words_later

    stream, times = compute_stream(), []
    for _ in range(turns):
        start = time.perf_counter()
        array = memory.empty((nbytes,), np.uint8)
        fill_words_later(array, 0, stream)
        del array
        times.append(time.perf_counter() - start)
    stream.sync()
    memory.trim()
    return 1e6 * statistics.median(times)


def copy_gb_s(nbytes: int, way: str, pinned: bool, turns: int = 7) -> float:
    """Median GB/s of a copy "to GPU" or "from GPU", from its start until it has finished."""
    from cuda.bindings import driver

    from minllm.runtime.array import address_of

    host = pinned_empty((nbytes,), np.uint8) if pinned else np.empty(nbytes, np.uint8)
    host[:] = 1  # touches the pages
    array, times = device_memory().empty((nbytes,), np.uint8), []
    for _ in range(turns + 1):
        start = time.perf_counter()
        if way == "to GPU":
            check_driver(driver.cuMemcpyHtoD(array.pointer, address_of(host), nbytes), "copy to the GPU")
        else:
            check_driver(driver.cuMemcpyDtoH(address_of(host), array.pointer, nbytes), "copy from the GPU")
        check_driver(driver.cuCtxSynchronize(), "wait for the copy")
        times.append(time.perf_counter() - start)
    return nbytes / statistics.median(times[1:]) / 1e9
