"""Cores and free memory of this machine, on Linux, macOS and Windows."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def available_cores() -> int:
    """The number of cores that this process may use: on Linux those in its CPU affinity, elsewhere all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_host_bytes() -> int:
    """Memory in bytes that the operating system can give to this process now."""
    if sys.platform == "darwin":
        return bytes_of_vm_stat(subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout)
    return bytes_of_windows() if sys.platform == "win32" else bytes_of_meminfo(MEMINFO.read_text(encoding="utf-8"))


def bytes_of_meminfo(text: str) -> int:
    """MemAvailable in the text of /proc/meminfo, which has it in KiB, in bytes."""
    fields = dict(line.split(":") for line in text.splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def bytes_of_vm_stat(text: str) -> int:
    """Bytes of pages that macOS has free, or can free without writing them to disk; text: the output of vm_stat."""
    page_bytes = int(re.search(r"page size of (\d+) bytes", text)[1])
    pages = dict(re.findall(r"^Pages ([\w ]+):\s+(\d+)\.", text, re.MULTILINE))
    return page_bytes * sum(int(pages.get(name, 0)) for name in ("free", "inactive", "speculative", "purgeable"))


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in ("total", "available", "total_file", "available_file", "total_virtual", "available_virtual", "available_extended")
    ]


def bytes_of_windows() -> int:
    """Bytes of available physical memory on Windows (GlobalMemoryStatusEx). Raises OSError."""
    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise ctypes.WinError()
    return status.available
