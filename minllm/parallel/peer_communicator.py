"""A Communicator of the GPUs of one host: our own all-reduce kernels for suitable messages, a library for everything else.

`partial_sums` and `norm_of_partial_sums` take an all-reduce's place for the rows of a prompt (kernels/all_reduce/sequence_parallel.py).

The all-reduce kernel is chosen by the message's bytes (kernels/all_reduce/choice.py), or by name. All ranks launch the same shapes, so all
make the same choice. A kernel takes the number of an all-reduce from counters on the device, which continue when a graph is replayed; so
launches may be captured.

A wait ends after a number of polls, which is fixed when a launch is captured. While ranks warm up they wait for minutes, because a peer may
be compiling. Captured launches, and launches after the warm-up, wait for seconds, so a missing peer is reported soon.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from minllm.errors import DeviceError, KernelArgumentError
from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce.choice import chosen, chosen_with_norm
from minllm.kernels.all_reduce.fused_norm import fused_norm
from minllm.kernels.all_reduce.gemv_low_latency import gemv_low_latency
from minllm.kernels.all_reduce.peers import POLLS, Peers, RankLaunch, check_fault
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory, rows_of, sequence_parallel_norm
from minllm.kernels.vector import VECTOR_BYTES
from minllm.parallel.communicator import Communicator
from minllm.parallel.time_limits import step_seconds
from minllm.runtime.array_protocol import Array

SHARE_OF_A_STEP = 0.8  # the share of a step's time limit after which a missing peer is recorded before rank 0 ends all ranks
SECONDS_OF_POLLS = 10.0  # how long POLLS take, about
WARM_UP_POLLS = 60 * POLLS  # about ten minutes
MOST_POLLS = (1 << 31) - 1  # kernels take the number as int32: about twenty minutes


class PeerCommunicator:
    """See communicator.Communicator; arrays are those of `library`, a communicator of the same ranks.

    name: "by_size", or the kernel for every message that fits the ranks' memory. launch: launches a RankLaunch on the library's stream.
    is_capturing: whether launches are being captured. sequence: the memory for rows that the ranks divide, if there is one.
    """

    def __init__(
        self, library: Communicator, peers: Peers, name: str, launch: Callable[[RankLaunch], None],
        is_capturing: Callable[[], bool] = lambda: False, sequence: SequenceMemory | None = None,
    ):  # fmt: skip
        self.sequence = sequence
        self.library, self.peers, self.name, self._launch, self._is_capturing = library, peers, name, launch, is_capturing
        self.is_warm = False  # whether all ranks have warmed up
        self.step_polls = int(min(MOST_POLLS, POLLS * SHARE_OF_A_STEP * step_seconds() / SECONDS_OF_POLLS))
        self.rank, self.world_size = library.rank, library.world_size
        self.all_gather, self.broadcast, self.barrier = library.all_gather, library.broadcast, library.barrier
        self.send, self.recv, self.close = library.send, library.recv, library.close

    @property
    def fault(self) -> Any:
        """uint32 [1] on the device: not 0 after a kernel of this rank has given up waiting for a peer."""
        return self.peers.own.fault

    def all_reduce(self, array: Array) -> None:
        """array = the sum of all ranks' arrays, in place: float32, float16 or bfloat16."""
        found = self.launch_of(array)
        if found is None:
            self.library.all_reduce(array)
        else:
            self._launch(found)

    def launch_of(self, array: Array) -> RankLaunch | None:
        """This rank's launch for a message; None if the library handles the message."""
        name = chosen(self.name, self.world_size, array.nbytes)
        if name is None or array.nbytes % VECTOR_BYTES:
            return None
        flat = array.reshape(-1)
        try:
            return VARIANTS[name](flat, flat, self._waiting_peers())
        except KernelArgumentError:  # an unsupported dtype, for which the library raises, or more bytes than the ranks' memory holds
            return None

    def reduce_and_norm(self, rows: Array, residual: Array, weight: Array, epsilon: float, out: Array) -> bool:
        """residual += the sum of all ranks' rows, and out = its RMSNorm, in one kernel. False, and nothing done, if no kernel can.

        rows, residual, out: [tokens, hidden]; weight: [hidden].
        """
        algorithm = chosen_with_norm(self.name, self.world_size, rows.nbytes)
        return algorithm is not None and self.launched(lambda peers: [fused_norm(rows, weight, out, epsilon, residual, peers, algorithm)])

    def gemv_all_reduce(self, x: Array, weight: Array, bias: Array | None, residual: Array | None, out: Array) -> bool:
        """out = the sum of all ranks' x @ weight.T + bias + residual, which the GEMV sends. False, and nothing done, if no kernel can.

        x: [1, K]; weight: [N, K]; bias: [N]; residual, out: [1, N].
        """
        algorithm = chosen(self.name, self.world_size, out.nbytes)
        return algorithm == "low_latency" and self.launched(lambda peers: gemv_low_latency(x, weight, out, peers, bias, residual))

    def partial_sums(self, tokens: int, hidden: int, dtype: np.dtype) -> Any:
        """Where a rank stores its partial sums of rows that ranks divide, [tokens, hidden]; None if an all-reduce should add them up."""
        if self.sequence is None or self.sequence.why_not(tokens, hidden * dtype.itemsize):
            return None
        return rows_of(self.sequence.partials, (tokens, hidden), dtype)

    def norm_of_partial_sums(self, residual: Array, weight: Array | None, epsilon: float) -> Any:
        """residual += the sum of what all ranks stored in their `partial_sums`, in the rank's own rows; returns the RMSNorm of all rows.

        With weight None it returns the rows themselves. The next call overwrites the result.
        """
        self._launch(sequence_parallel_norm(residual, weight, epsilon, self.sequence, self._waiting_peers()))
        return rows_of(self.sequence.rows[self.rank], residual.shape, residual.dtype)

    def launched(self, make: Callable[[Peers], Iterable[RankLaunch]]) -> bool:
        """Launch all of make(peers); False, and nothing done, if it raises KernelArgumentError: the kernels take no such arrays, or the
        ranks' memory is too small."""
        try:
            found = make(self._waiting_peers())
        except KernelArgumentError:
            return False
        for one in found:
            self._launch(one)
        return True

    def _waiting_peers(self) -> Peers:
        """The Peers with the number of polls after which a wait gives up now."""
        return self.peers._replace(polls=self.step_polls if self.is_warm or self._is_capturing() else WARM_UP_POLLS)

    def check(self, fault: np.ndarray) -> None:
        """Raise DeviceError if `fault`, a host copy of the array, records that this rank has given up waiting for a peer."""
        check_fault(self.rank, int(fault[0]))

    def why_faulty(self) -> str | None:
        """The message that `check` would raise now, while kernels run; None without a fault. Another thread may call it."""
        from minllm.runtime.exported_memory import read_word

        try:
            check_fault(self.rank, read_word(self.fault))
        except DeviceError as error:
            return str(error)
        return None

    def abort(self) -> None:
        """Let kernels that wait for a peer give up; their results are wrong. Another thread may call it."""
        from minllm.runtime.exported_memory import write_now

        write_now(self.fault, self.rank + 1)
