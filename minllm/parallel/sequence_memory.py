"""The memory for prompts whose rows tensor ranks divide (kernels/all_reduce/sequence_parallel.py), mapped by every rank.

A rank creates pages for what each rank stores in its rows, and gives them to that rank, which maps those of all ranks in turn: its GEMMs
then write one array. The normalised rows are a plain allocation of every rank, which all map, as in peer_memory.py.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from minllm.costs.parallel import divides_rows
from minllm.errors import DeviceError
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory, group_and_sequence_bytes
from minllm.models.config import ModelConfig
from minllm.parallel.communicator import CommunicationError, Communicator, PeerLostError
from minllm.parallel.file_descriptors import exchanged
from minllm.parallel.peer_memory import SharedMachine, gpu_machine, mapped_by_all, on_all
from minllm.runtime.shared_pages import SharedPages


def sequence_bytes(config: ModelConfig, dtype: np.dtype, ranks: int) -> tuple[int, int] | None:
    """(bytes of a group, bytes of all ranks' groups) for a model's rows; None if its ranks do not divide them."""
    return group_and_sequence_bytes(ranks, config.hidden_size * dtype.itemsize) if divides_rows(config) else None


class SharedSequence(NamedTuple):
    """A SequenceMemory, and what this rank has created, opened and mapped for it."""

    memory: SequenceMemory
    resources: contextlib.ExitStack

    def close(self) -> None:
        """Return this rank's memory and its maps of the others': no kernel may use them any more."""
        with contextlib.suppress(DeviceError):  # after an error of the GPU the driver refuses, and the end of the process returns them
            self.resources.close()


def connect_sequence(
    host: Communicator, group_bytes: int, nbytes: int, machine: SharedMachine | None = None, make_pages: Any = SharedPages
) -> SharedSequence | str:  # fmt: skip
    """The SharedSequence for sequences of up to nbytes, or the reason why there is none. All ranks get the same kind of result.

    host: a communicator of the same ranks, for NumPy arrays. group_bytes: as in SequenceMemory. machine, make_pages: of GPUs by default.
    Raises PeerLostError if a rank has ended.
    """
    machine, ranks, count = machine or gpu_machine(), host.world_size, nbytes // (host.world_size * group_bytes)
    whole = mapped_by_all(host, nbytes, machine)
    if isinstance(whole, str):
        return whole
    with contextlib.ExitStack() as resources, contextlib.ExitStack() as descriptors:
        for one in whole:
            resources.callback(one.close)
        try:
            pages = on_all(host, lambda: make_pages(group_bytes))
            own = on_all(host, lambda: [[created(pages, resources) for _ in range(count)] for _ in range(ranks)])
            for_peers = [[] if rank == host.rank else of_rank for rank, of_rank in enumerate(own)]
            given = on_all(host, lambda: [closed_by(descriptors, map(pages.descriptor, of_rank)) for of_rank in for_peers])
            found = [closed_by(descriptors, of_rank) for of_rank in exchanged(host, given)]
            theirs = on_all(host, lambda: [[opened(pages, one, resources) for one in of_rank] for of_rank in found])
            theirs[host.rank] = own[host.rank]
            partials = on_all(host, lambda: mapped(pages, [of_rank[group] for group in range(count) for of_rank in theirs], resources))
            received = on_all(host, lambda: tuple(mapped(pages, of_rank, resources) for of_rank in own))
        except PeerLostError:  # no reason of a rank that lives
            raise
        except CommunicationError as error:
            return str(error)
        rows = tuple(machine.array(one, 0, nbytes, np.uint8) for one in whole)
        return SharedSequence(SequenceMemory(group_bytes, partials, received, rows), resources.pop_all())


def created(pages: Any, resources: contextlib.ExitStack) -> Any:
    """A new page, which the resources release. Raises DeviceError if the GPU has too little memory."""
    page = pages.create()
    if page is None:
        raise DeviceError(f"the GPU has no {pages.page_bytes} bytes left for rows of prompts: end other programs on it")
    resources.callback(pages.release, page)
    return page


def opened(pages: Any, descriptor: int, resources: contextlib.ExitStack) -> Any:
    """Another rank's page, which the resources release."""
    page = pages.opened(descriptor)
    resources.callback(pages.release, page)
    return page


def mapped(pages: Any, side_by_side: list[Any], resources: contextlib.ExitStack) -> Any:
    """The pages as one array of bytes, until the resources unmap them."""
    array = pages.side_by_side(side_by_side)
    resources.callback(pages.taken_apart, array)
    return array


def closed_by(descriptors: contextlib.ExitStack, opened_ones: Iterable[int]) -> list[int]:
    """File descriptors, which the stack closes."""
    found = []
    for one in opened_ones:
        descriptors.callback(os.close, one)
        found.append(one)
    return found
