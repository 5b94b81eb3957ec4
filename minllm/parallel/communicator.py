"""The communication between ranks: MPI's collective operations, as one protocol.

Every rank calls the same operations in the same order, with arrays of the same shapes and dtypes, except for `send` and `recv`, which only
two ranks call. Arrays are the machine's: NumPy arrays in `shared_memory.SharedMemoryCommunicator`, device arrays with NCCL or our own
kernels. Operations on device arrays are launched on the communicator's stream and return before they are complete; those on NumPy arrays
are complete when they return.

Source: "MPI: A Message-Passing Interface Standard 4.1", chapters 3 and 6; Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", section 1.
"""

from typing import Any, Protocol

from minllm.errors import KernelArgumentError, MinLLMError
from minllm.kernels.arguments import FLOAT_DTYPES, is_contiguous

Array = Any


class CommunicationError(MinLLMError):
    """Ranks could not be connected, disagree about an operation, or the library or the link between them failed."""


class PeerLostError(CommunicationError):
    """A rank waited for `peer` longer than the time limit, or `peer` has ended."""

    def __init__(self, message: str, peer: int):
        super().__init__(message)
        self.peer = peer


class Communicator(Protocol):
    """A group of ranks, 0 to world_size - 1, on its rank `rank`.

    Raises KernelArgumentError for an array that an operation does not support (not C-contiguous, an unknown dtype, too large),
    CommunicationError if a link fails, or after close(), and PeerLostError if a peer does not answer in time: every wait is bounded.
    """

    rank: int
    world_size: int

    def all_reduce(self, array: Array) -> None:
        """array = the sum of all ranks' arrays, in place; float32, float16 or bfloat16. Sums are float32, in the order of ranks, so all
        ranks get the same bits."""
        ...

    def all_gather(self, array: Array, out: Array) -> None:
        """out[r] = rank r's array, on every rank: array [...] and out [world_size, ...], of any dtype."""
        ...

    def broadcast(self, array: Array, source: int = 0) -> None:
        """array = the array of rank `source`, in place, of any dtype."""
        ...

    def send(self, array: Array, destination: int) -> None:
        """Send an array to a rank that calls recv. Several messages between two ranks arrive in order."""
        ...

    def recv(self, array: Array, source: int) -> None:
        """Overwrite an array with the array that rank `source` sends."""
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def close(self) -> None:
        """Release memory and links. Calling it again does nothing."""
        ...


def check_summed(array: Array) -> None:
    """Raise KernelArgumentError for an array of numbers that all_reduce does not add."""
    if array.dtype not in FLOAT_DTYPES:
        raise KernelArgumentError(f"all_reduce was given {array.dtype}; it adds {', '.join(one.name for one in FLOAT_DTYPES)}")


def check_gathered(array: Array, out: Array, ranks: int) -> None:
    """Raise KernelArgumentError if `out` cannot hold the arrays of so many ranks."""
    if out.shape != (ranks, *array.shape) or out.dtype != array.dtype:
        raise KernelArgumentError(
            f"all_gather was given an out of {out.dtype} {list(out.shape)}; for {array.dtype} {list(array.shape)} of {ranks} ranks it must "
            f"be {array.dtype} {[ranks, *array.shape]}"
        )


def check_contiguous(array: Array) -> None:
    """Raise KernelArgumentError for an array with gaps."""
    if not is_contiguous(array):
        raise KernelArgumentError(f"ranks exchange C-contiguous arrays, and one of strides {array.strides} was given: copy it first")
