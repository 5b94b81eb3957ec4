"""A case of the kernel benchmark: inputs, launches, amount of work, and the check of the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from minllm.bench.record import Row
from minllm.catalogue.launch import MICROSECONDS, TB_S, TFLOP_S, TOKENS_US, Launch, Measured, on_device
from minllm.catalogue.noise import Noise
from minllm.ops.protocol import Ops

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
TOLERANCE = {BFLOAT16: 1e-2, FLOAT32: 1e-4}  # allowed relative error: several roundings of the dtype, far below the error of any bug


@dataclass(frozen=True)
class Rival:
    """Another minllm kernel for the same work, with one launch per set of inputs, measured alternately."""

    name: str
    launches: Sequence[Callable[[], None]]


@dataclass(frozen=True)
class Prepared:
    """A case with its arrays allocated and filled."""

    launches: Sequence[Callable[[], None]]  # one per set of inputs
    inputs: Sequence[Mapping[str, Any]]  # the arrays of each set, which peers use too
    result: Callable[[], np.ndarray]  # the output of the first launch, on the host
    error: Callable[[np.ndarray], float]  # the error of a result, as in `relative_error`
    rival: Rival | None = None


@dataclass(frozen=True)
class KernelCase:
    """A case, which becomes one row of the record.

    stage: a folder of minllm/kernels. work: bytes read and written, or FLOPs, per launch, by the formulas in the kernels' docstrings. For
    the unit µs it is the least number of bytes that a launch must read, or 0 if that is meaningless; for tokens of context per second
    (`tokens` per launch) it is the bytes of these tokens. set_bytes: memory that one launch accesses. prepare(ops, noise, sets): makes the
    arrays with the given CudaOps. peers: names from torch_peers.PEERS. for_tuning: the record does without it.
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
    for_tuning: bool = False

    @property
    def name(self) -> str:
        """What identifies its row, as text."""
        return f"{self.benchmark}, {self.case}, {self.variant}"

    @property
    def allowed_error(self) -> float:
        """The largest relative error at which a kernel is still timed."""
        return TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance

    def value(self, seconds: float) -> float:
        """The value of a launch that took `seconds`, in the case's unit."""
        if self.unit == TOKENS_US:
            return 1e-6 * self.tokens / seconds
        return 1e6 * seconds if self.unit == MICROSECONDS else self.work / seconds / 1e12

    def limit(self, ceilings: Mapping[str, float | None]) -> float | None:
        """The best value that the measured ceilings allow; None if they do not apply to this case."""
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
        """The row of the record; ratio and of_limit compare speeds, so that higher is better in every unit."""
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


class RepeatedLaunch:
    """A launch on arrays of a device. What it allocates at its first call it gets again at all others, as an engine's launches do.

    It is the `ops` of the launch's call.
    """

    def __init__(self, ops: Ops, launch: Launch, arrays: Mapping[str, Any]):
        self.ops, self.launch, self.arrays, self.stream, self.array = ops, launch, arrays, ops.stream, ops.array
        self.allocated: list[Any] = []
        self.asked = 0

    def __call__(self) -> dict[str, Any]:
        """Launch -> the arrays and the further results."""
        self.asked = 0
        return self.launch.run(self, self.arrays)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """An array with any contents."""
        return self._once(self.ops.empty, shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Counts, which a launch leaves zeros."""
        return self._once(self.ops.zeros, shape, dtype)

    def _once(self, allocate: Callable[..., Any], shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        if self.asked == len(self.allocated):
            self.allocated.append(allocate(shape, dtype))
        self.asked += 1
        return self.allocated[self.asked - 1]


def repeated(launch: Launch, ops: Ops, host: Mapping[str, Any], sets: int) -> list[RepeatedLaunch]:
    """The launch on `sets` copies of its arrays on the device."""
    return [RepeatedLaunch(ops, launch, {name: on_device(ops, one) for name, one in host.items()}) for _ in range(sets)]


def case_of(row: Measured) -> KernelCase:
    """The case of a row of the catalogue: its main result is compared with that of the reference, for some of the tokens if it has rows."""
    launch = row.launch

    def prepare(ops: Ops, noise: Noise, sets: int) -> Prepared:
        host = launch.arrays(noise)
        first, *others = repeated(launch, ops, host, sets)
        tokens = some_of(len(host[launch.rows[0]]), row.sample, noise) if launch.rows else np.arange(0)
        given, found = launch.part(host, tokens), {}
        name, expected = next(iter(launch.reference(**given).items()))
        written = given[name].view(np.uint8) != expected.view(np.uint8) if name in given else np.ones(expected.shape, bool)
        written = written.reshape(*expected.shape, -1).any(axis=-1)  # the elements, of bytes

        def launch_first() -> None:
            found.update(first())

        def error(result: np.ndarray) -> float:
            rows = result.reshape(-1, *expected.shape[1:])
            return relative_error((rows[tokens] if name in launch.rows else rows)[written], expected[written])

        rival = rival_of(row.rival, ops, noise, sets) if row.rival else None
        placed = [one.arrays for one in (first, *others)]
        return Prepared([launch_first, *others], placed, lambda: ops.to_host(found[name]), error, rival)

    def default(value: int | None) -> int:
        return launch.bytes if value is None else value

    return KernelCase(
        row.stage or launch.stage, row.benchmark or launch.stage, row.case, row.variant, launch.dtype, row.unit, default(row.work),
        default(row.set_bytes), prepare, row.peers, 0.0 if launch.exact is True and row.tolerance is None else row.tolerance, row.tokens,
        row.for_tuning,
    )  # fmt: skip


def rival_of(launch: Launch, ops: Ops, noise: Noise, sets: int) -> Rival:
    """A launch of another variant, on as many sets of arrays."""
    return Rival(f"minllm {launch.shape['variant']}, {launch.dtype}", repeated(launch, ops, launch.arrays(noise), sets))


def rounded(value: float) -> float:
    """Round to four significant digits; further ones are noise."""
    return float(f"{value:.4g}")


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The norm of the difference over the norm of the expected values; NaN if any found value is NaN."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    difference, norm = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected))
    return difference / norm if norm else difference


def some_of(count: int, at_most: int, noise: Noise) -> np.ndarray:
    """Up to `at_most` of the numbers below `count`, ascending, including the first and the last."""
    if count <= at_most:
        return np.arange(count)
    chosen = noise.random.choice(count, at_most, replace=False)
    return np.unique(np.concatenate([[0, count - 1], chosen[: at_most - 2]]))
