"""What the benchmark of one kernel is: its inputs, its launches, what it must move or compute, and how its result is judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from minllm.bench.noise import Noise
from minllm.bench.record import Row

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
TOLERANCE = {BFLOAT16: 1e-2, FLOAT32: 1e-4}  # of the relative error: several roundings of the dtype, far below any mistake

TB_S, TFLOP_S, MICROSECONDS, TOKENS_US = "TB/s", "TFLOP/s", "µs", "tokens/µs"


@dataclass(frozen=True)
class Rival:
    """Another kernel of ours that does the same work, measured in turn with the case's: its name, and a launch for each set of inputs."""

    name: str
    launches: Sequence[Callable[[], None]]


@dataclass(frozen=True)
class Prepared:
    """A case with its arrays in place."""

    launches: Sequence[Callable[[], None]]  # one for each set of inputs
    inputs: Sequence[Mapping[str, Any]]  # the arrays of each set, for peers to compute on
    result: Callable[[], np.ndarray]  # what the first launch has written, on the host
    error: Callable[[np.ndarray], float]  # of a result, as in `relative_error`
    rival: Rival | None = None


@dataclass(frozen=True)
class KernelCase:
    """One row of the record to be.

    stage: the folder of minllm/kernels. work: bytes read and written, or floating-point operations, of one launch, by the formulas in the
    kernels' docstrings; for a time the bytes that a launch has to read at least, 0 where that says nothing; for tokens of context a
    second (`tokens` of them a launch) the bytes of these. set_bytes: memory that one
    launch touches. prepare(ops, noise, sets): the arrays, through the CudaOps that is given. peers: names from torch_peers.PEERS.
    """

    stage: str
    benchmark: str
    case: str
    variant: str
    dtype: np.dtype
    unit: str
    work: int
    set_bytes: int
    prepare: Callable[[Any, Noise, int], Prepared]
    peers: tuple[str, ...] = ()
    tolerance: float | None = None
    tokens: int = 0

    @property
    def allowed_error(self) -> float:
        """The largest relative error with which a kernel is worth timing."""
        return TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance

    def value(self, seconds: float) -> float:
        """What a launch of so many seconds comes to, in the case's unit."""
        if self.unit == TOKENS_US:
            return 1e-6 * self.tokens / seconds
        return 1e6 * seconds if self.unit == MICROSECONDS else self.work / seconds / 1e12

    def limit(self, ceilings: Mapping[str, float | None]) -> float | None:
        """The value that the measured ceilings allow, None where they say nothing about this case."""
        copy, tensor_cores = ceilings.get("copy_tb_s"), ceilings.get("bf16_tflops")
        if self.unit == TB_S:
            return copy
        if self.unit == TOKENS_US:
            return copy and self.value(self.work / (copy * 1e12))
        if self.unit == TFLOP_S:
            return tensor_cores if self.dtype == BFLOAT16 else None
        return 1e6 * self.work / (copy * 1e12) if copy and self.work else None

    def row(
        self,
        seconds: float,
        error: float,
        ceilings: Mapping[str, float | None],
        peer: str | None = None,
        peer_seconds: float | None = None,
        peer_error: float | None = None,
    ) -> Row:
        """The row of the record; ratio and of_limit are in speed, so that more is better whatever the unit."""
        value, limit = self.value(seconds), self.limit(ceilings)
        of_limit = None if limit is None else limit / value if self.unit == MICROSECONDS else value / limit
        return Row(
            self.benchmark, self.case, self.variant, rounded(value), self.unit,
            peer=peer,
            peer_value=None if peer_seconds is None else rounded(self.value(peer_seconds)),
            ratio=None if peer_seconds is None else rounded(peer_seconds / seconds),
            limit=None if limit is None else rounded(limit),
            of_limit=None if of_limit is None else rounded(of_limit),
            error=rounded(error),
            peer_error=None if peer_error is None else rounded(peer_error),
        )  # fmt: skip


def rounded(value: float) -> float:
    """To four significant digits: more is noise."""
    return float(f"{value:.4g}")


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The norm of the difference over the norm of what is expected; NaN where anything found is NaN."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    difference, norm = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected))
    return difference / norm if norm else difference


def some_of(count: int, at_most: int, noise: Noise) -> np.ndarray:
    """Up to `at_most` of the numbers below `count`, ascending, the first and the last among them."""
    if count <= at_most:
        return np.arange(count)
    chosen = noise.random.choice(count, at_most, replace=False)
    return np.unique(np.concatenate([[0, count - 1], chosen[: at_most - 2]]))
