"""Cores and memory, as three systems tell them."""

import ctypes
import os

from minllm.machine.host import MemoryStatus, available_cores, available_host_bytes, bytes_of_meminfo, bytes_of_vm_stat

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                                5000.
Pages active:                            400000.
Pages inactive:                          300000.
Pages speculative:                         1000.
Pages throttled:                              0.
Pages wired down:                        150000.
Pages purgeable:                            200.
"Translation faults":                 123456789.
"""


def test_this_machine_has_cores_and_memory(monkeypatch):
    assert available_host_bytes() > 1 << 20
    assert 1 <= available_cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert available_cores() == os.cpu_count()


def test_linux_tells_kibibytes():
    assert bytes_of_meminfo("MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  500 kB\n") == 500 * 1024


def test_macos_counts_pages():
    assert bytes_of_vm_stat(VM_STAT) == 16384 * (5000 + 300000 + 1000 + 200)


def test_the_structure_of_windows_has_its_size():
    assert ctypes.sizeof(MemoryStatus) == 64
