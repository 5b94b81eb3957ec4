"""A Communicator of GPUs by NCCL, through nccl4py: an optional package, `pip install 'nccl4py[cu13]'` (or cu12).

Operations are launched on the engine's stream, between its kernels, and return at once. NCCL chooses the order of its sums, and gives all
ranks the same bits. It is the GPU that waits for a peer, not the host, so there is no time limit here: `abort`, which another thread may
call, ends the operations under way. NVLink multicast (NVLS) stays switched off unless the environment enables it.

ncclCommAbort tells kernels to end, and then waits: for the work before them on the stream, for the end of all graphs that have captured
operations, and for connections that peers have to its proxy. So it has a thread of its own here, and `close` waits for this thread for
a limited time. ncclCommDestroy, which would wait for the peers' operations too, is never called.

The bindings take addresses, as C does. Their larger interface, nccl.core, would look for PyTorch and CuPy at every call.

Source: NVIDIA, "NCCL User Guide", Collective Communication Functions, Point To Point Communication Functions, Fault Tolerance; its
src/init.cc, commDestroySync, and src/proxy.cc, ncclProxyService.
"""

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from minllm.errors import InvalidOptionError
from minllm.parallel.communicator import CommunicationError, Communicator, check_contiguous, check_gathered, check_summed
from minllm.parallel.let_go import LIMIT_S
from minllm.runtime.array_protocol import Array

NVLS = "NCCL_NVLS_ENABLE"
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
BYTES, SUM = 1, 0  # ncclUint8, ncclSum
SUMMED = {np.dtype(np.float16): 6, np.dtype(np.float32): 7, np.dtype(ml_dtypes.bfloat16): 9}  # ncclDataType_t


def bindings() -> Any:
    """The module nccl.bindings.nccl. Raises InvalidOptionError, with the command to install it, if it is missing."""
    try:
        from nccl.bindings import nccl
    except ImportError as error:
        raise InvalidOptionError(
            f"Several GPUs need NCCL's Python bindings ({error}): pip install 'nccl4py[cu13]' (or [cu12]), or take one GPU."
        ) from error
    return nccl


class NcclCommunicator:
    """See communicator.Communicator; arrays are DeviceArrays."""

    def __init__(self, rank: int, world_size: int, unique_id: bytes, stream: int, library: Any = None):
        """Connect to the other ranks, which pass the same unique_id. stream: the driver's handle. library: the bindings."""
        self.rank, self.world_size, self.stream = rank, world_size, stream
        self._nccl = bindings() if library is None else library
        self._lock, self._closing = threading.Lock(), None  # the thread that closes it
        with self._explained("connect"):
            self._handle = self._nccl.comm_init_rank_scalable(world_size, rank, 1, bytearray(unique_id), 0)

    @classmethod
    def connect(cls, host: Communicator, stream: int, library: Any = None) -> "NcclCommunicator":
        """A communicator of the same ranks as `host`, a communicator for NumPy arrays."""
        os.environ.setdefault(NVLS, "0")
        nccl, unique_id = bindings() if library is None else library, np.zeros(ID_BYTES, np.uint8)
        if host.rank == 0:
            unique_id[:] = np.frombuffer(bytes(nccl.get_unique_id()), np.uint8)
        host.broadcast(unique_id)
        return cls(host.rank, host.world_size, unique_id.tobytes(), stream, nccl)

    def all_reduce(self, array: Array) -> None:
        """array = the sum of all ranks' arrays, in place: float32, float16 or bfloat16."""
        check_summed(array)
        at = self._address(array)
        with self._explained("all-reduce"):
            self._nccl.all_reduce(at, at, array.size, SUMMED[array.dtype], SUM, self._handle, self.stream)

    def all_gather(self, array: Array, out: Array) -> None:
        """out[r] = rank r's array."""
        check_gathered(array, out, self.world_size)
        with self._explained("all-gather"):
            self._nccl.all_gather(self._address(array), self._address(out), array.nbytes, BYTES, self._handle, self.stream)

    def broadcast(self, array: Array, source: int = 0) -> None:
        """array = the array of rank `source`, in place."""
        at = self._address(array)
        with self._explained("broadcast"):
            self._nccl.broadcast(at, at, array.nbytes, BYTES, source, self._handle, self.stream)

    def send(self, array: Array, destination: int) -> None:
        """Send an array to a rank that calls recv."""
        with self._explained(f"send to rank {destination}"):
            self._nccl.send(self._address(array), array.nbytes, BYTES, destination, self._handle, self.stream)

    def recv(self, array: Array, source: int) -> None:
        """Overwrite an array with the array that rank `source` sends."""
        with self._explained(f"receive from rank {source}"):
            self._nccl.recv(self._address(array), array.nbytes, BYTES, source, self._handle, self.stream)

    def barrier(self) -> None:
        """Does nothing: operations on one stream have the same order on all ranks, and events report completion."""

    def abort(self) -> threading.Thread:
        """End the operations under way, leaving their results undefined, and begin to close. Any thread may call it.

        Returns at once, with the thread that closes.
        """
        with self._lock:
            if self._closing is None:
                self._closing = threading.Thread(target=self._end, daemon=True)
                self._closing.start()
            return self._closing

    def close(self, limit_s: float = LIMIT_S) -> None:
        """End the operations under way, and release memory and links. After limit_s it warns, and NCCL goes on in its thread."""
        closing = self.abort()
        closing.join(limit_s)
        if closing.is_alive():
            warnings.warn(
                f"NCCL has not closed the links of rank {self.rank} within {limit_s:g} s: some memory of its GPU may be in use until this "
                "process ends.",
                stacklevel=2,
            )

    def _end(self) -> None:
        with contextlib.suppress(Exception):  # the ranks are ending; the first error has been reported
            self._nccl.comm_abort(self._handle)

    def _address(self, array: Array) -> int:
        if self._closing is not None:
            raise CommunicationError("This communicator is closed.")
        check_contiguous(array)
        return array.pointer

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raise NCCL's errors as CommunicationError."""
        try:
            yield
        except (self._nccl.NCCLError, RuntimeError) as error:
            raise CommunicationError(f"NCCL could not {what} on rank {self.rank} of {self.world_size}: {error}") from error
