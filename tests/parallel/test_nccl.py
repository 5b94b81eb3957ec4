"""NcclCommunicator: what it asks of NCCL, with a stand-in for nccl4py's bindings; tests/gpu has the library itself."""

import threading

import ml_dtypes
import numpy as np
import pytest

from minllm.engine.ranks import check
from minllm.errors import InvalidOptionError, KernelArgumentError
from minllm.parallel.communicator import CommunicationError
from minllm.parallel.nccl import NcclCommunicator
from minllm.runtime.array import DeviceArray
from tests.parallel.in_threads import in_threads


class StandIn:
    """Notes every call as (name, *arguments)."""

    class NCCLError(Exception):
        pass

    def __init__(self):
        self.calls, self.error = [], None

    def get_unique_id(self):
        return bytes(range(128))

    def comm_init_rank_scalable(self, *arguments):
        self.calls.append(("connect", *arguments))
        return "handle"

    def __getattr__(self, name):
        def call(*arguments):
            if self.error is not None:
                raise self.error
            self.calls.append((name, *arguments))

        return call


def device_array(shape, dtype, pointer=4096, strides=None):
    return DeviceArray(pointer, shape, np.dtype(dtype), None, None, strides)


@pytest.fixture
def link():
    return NcclCommunicator(1, 2, b"id", 77, StandIn())


def test_all_ranks_connect_with_the_id_of_the_first():
    libraries = [StandIn(), StandIn()]
    in_threads(2, lambda rank: NcclCommunicator.connect(rank.host, 77, libraries[rank.rank]))
    for rank, library in enumerate(libraries):
        assert library.calls == [("connect", 2, rank, 1, bytearray(range(128)), 0)]


def test_operations_pass_addresses_sizes_and_types(link):
    link.all_reduce(device_array((3, 5), ml_dtypes.bfloat16))
    link.all_reduce(device_array((3, 5), np.float32))
    link.all_reduce(device_array((3, 5), np.float16))
    link.all_gather(device_array((3, 5), np.int32), device_array((2, 3, 5), np.int32, 8192))
    link.broadcast(device_array((7,), np.int32))
    link.send(device_array((7,), ml_dtypes.bfloat16), 0)
    link.recv(device_array((7,), ml_dtypes.bfloat16), 0)
    assert link._nccl.calls[1:] == [
        ("all_reduce", 4096, 4096, 15, 9, 0, "handle", 77),  # ncclBfloat16, ncclSum
        ("all_reduce", 4096, 4096, 15, 7, 0, "handle", 77),  # ncclFloat32
        ("all_reduce", 4096, 4096, 15, 6, 0, "handle", 77),  # ncclFloat16
        ("all_gather", 4096, 8192, 60, 1, "handle", 77),  # bytes
        ("broadcast", 4096, 4096, 28, 1, 0, "handle", 77),
        ("send", 4096, 14, 1, 0, "handle", 77),
        ("recv", 4096, 14, 1, 0, "handle", 77),
    ]


def test_wrong_arrays_and_errors_of_the_library_are_told(link):
    with pytest.raises(KernelArgumentError, match="all_reduce was given int32"):
        link.all_reduce(device_array((3,), np.int32))
    with pytest.raises(KernelArgumentError, match=r"for float32 \[3\] of 2 ranks it must be float32 \[2, 3\]"):
        link.all_gather(device_array((3,), np.float32), device_array((3,), np.float32))
    with pytest.raises(KernelArgumentError, match="C-contiguous"):
        link.broadcast(device_array((3,), np.float32, strides=(8,)))
    link._nccl.error = StandIn.NCCLError("unhandled system error")
    with pytest.raises(CommunicationError, match="NCCL could not send to rank 0 on rank 1 of 2: unhandled system error"):
        link.send(device_array((3,), np.float32), 0)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_it_ends_once_and_refuses_what_comes_after(end, link):
    getattr(link, end)()
    link.close()
    assert link._nccl.calls[1:] == [("comm_abort", "handle")]
    with pytest.raises(CommunicationError, match="closed"):
        link.broadcast(device_array((3,), np.float32))


def test_an_abort_that_hangs_is_left_to_its_thread(link):
    hangs = threading.Event()
    link._nccl.comm_abort = lambda handle: hangs.wait()
    link.abort()  # of a thread that has other things to end
    with pytest.warns(UserWarning, match="NCCL has not closed the links of rank 1 within 0.1 s"):
        link.close(limit_s=0.1)
    hangs.set()
    link.close()


def test_gpus_are_checked_before_anything_starts(monkeypatch):
    monkeypatch.setattr(check, "bindings", lambda: None)
    monkeypatch.setattr(check, "device_names", lambda: ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"])
    check.check_gpus(2)
    with pytest.raises(InvalidOptionError, match=r"4 ranks need 4 GPUs, one each, and this machine shows 3 \(NVIDIA H200, "):
        check.check_gpus(4)
    with pytest.raises(InvalidOptionError, match="3 ranks need GPUs of one kind"):
        check.check_gpus(3)
