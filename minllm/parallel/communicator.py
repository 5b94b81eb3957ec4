"""What ranks tell each other: the collective operations (MPI's words), as one protocol.

Every rank calls the same operations in the same order, with arrays of the same shapes and dtypes; `send` and `recv` are the exception,
which two ranks call. An array is whatever the machine calls an array: NumPy's in `shared_memory.SharedMemoryCommunicator`, a device array
with NCCL or with kernels of our own. Operations on device arrays are launched on the communicator's stream and return before they are done;
those on NumPy arrays are done when they return.

Source: "MPI: A Message-Passing Interface Standard 4.1", chapters 3 and 6; Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", section 1.
"""

from typing import Any, Protocol

from minllm.errors import MinLLMError

Array = Any


class CommunicationError(MinLLMError):
    """Ranks could not be connected, disagree about an operation, or the library or the link between them failed."""


class PeerLostError(CommunicationError):
    """A rank waited for another longer than the time limit, or learned that it has ended. `peer` is the rank that was waited for."""

    def __init__(self, message: str, peer: int):
        super().__init__(message)
        self.peer = peer


class Communicator(Protocol):
    """The ranks of one group, 0 to world_size - 1, as rank `rank` of them sees it.

    KernelArgumentError for an array that an operation does not take (not C-contiguous, an unknown dtype, too large). CommunicationError if
    a link fails, or after close(). PeerLostError if a peer does not answer in time: every wait is bounded.
    """

    rank: int
    world_size: int

    def all_reduce(self, array: Array) -> None:
        """array = the sum of all ranks' arrays, in place. Float32, float16 or bfloat16; sums are float32, in the order of ranks, so all
        ranks get the same bits."""
        ...

    def all_gather(self, array: Array, out: Array) -> None:
        """out[r] = rank r's array, on every rank: array [...] and out [world_size, ...], of any dtype."""
        ...

    def broadcast(self, array: Array, source: int = 0) -> None:
        """array = that of rank `source`, in place, of any dtype."""
        ...

    def send(self, array: Array, destination: int) -> None:
        """Give an array to the rank that calls recv. Several messages between two ranks arrive in order."""
        ...

    def recv(self, array: Array, source: int) -> None:
        """Overwrite an array with what rank `source` sends."""
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def close(self) -> None:
        """Release memory and links. Calling it again does nothing."""
        ...
