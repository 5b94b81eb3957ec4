"""A dry run: Python code launches kernels as on a GPU, and the launches are listed instead of executed.

It needs no GPU and no memory. Arrays have addresses, because a launcher may choose a kernel by their alignment, but no contents. A dry run
finds the kernels of a forward pass before weights are loaded, so they can be compiled while the weights are read (compile_ahead.py).
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from numpy.typing import DTypeLike

from minllm.runtime.argument_type import argument_type
from minllm.runtime.array import DeviceArray
from minllm.runtime.device import Device, assume
from minllm.runtime.kernel import Kernel
from minllm.runtime.parameters import parameter
from minllm.runtime.recording import RecordedLaunch, recorded_launches

FIRST_ADDRESS = 1 << 32
ENDLESS = 1 << 60  # bytes


class Signature(NamedTuple):
    """A kernel and the Numba types of its arguments: the unit of compilation."""

    kernel: Kernel
    types: tuple[Any, ...]


class Addresses:
    """Addresses without memory behind them, with the interface of cuda_memory.CudaMemory."""

    def __init__(self):
        self.next = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> int:
        """An address that no other array has."""
        address = self.next
        self.next += nbytes
        return address

    def free(self, pointer: int) -> None:
        """Nothing to do."""

    def copy_to_device(self, pointer: int, address: int, nbytes: int) -> None:
        """Nothing to do: arrays have no contents."""

    def copy_to_host(self, address: int, pointer: int, nbytes: int) -> None:
        """Nothing to do."""

    def fill(self, pointer: int, value: int, nbytes: int) -> None:
        """Nothing to do."""

    def info(self) -> tuple[int, int]:
        """(free, total) bytes: effectively unlimited."""
        return ENDLESS, ENDLESS

    def trim(self) -> int:
        """Nothing is cached."""
        return 0


class DryRunPages:
    """Addresses of virtual memory, with the part of CudaPages' interface that a VirtualRange uses while nothing is mapped."""

    page_bytes = 2 << 20

    def __init__(self, memory: Addresses):
        self.memory = memory

    def reserve(self, nbytes: int) -> int:
        """The first of `nbytes` addresses."""
        return self.memory.allocate(nbytes)

    def give_up(self, address: int, nbytes: int) -> None:
        """Nothing to do."""

    def wait(self) -> None:
        """Nothing to do."""

    def array(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object) -> DeviceArray:
        """The array that begins at an address."""
        return DeviceArray(address, shape, dtype, owner, self.memory)


@contextlib.contextmanager
def dry_run(device: Device) -> Iterator[list[RecordedLaunch]]:
    """Within this context `device` is the current GPU, and launches are appended to the list that it yields."""
    with assume(device), recorded_launches() as launches:
        yield launches


def signatures(launches: Iterable[RecordedLaunch]) -> list[Signature]:
    """The distinct Signatures of these launches, in the order of their first launches."""
    found = {(one.launch.kernel, *types_key(one.arguments)): one for one in reversed(list(launches))}
    return [Signature(one.launch.kernel, tuple(map(argument_type, one.arguments))) for one in reversed(found.values())]


def types_key(arguments: Iterable[Any]) -> Iterator[Any]:
    """The keys of the arguments' types, by which Kernel.loaded distinguishes compiled kernels."""
    return (parameter(argument)[0] for argument in arguments)
