"""A contest of `minllm race`: the function that a reader writes, the cases that check it, and the kernels that it races."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.bench.kernel_case import TB_S, TFLOP_S
from minllm.catalogue.noise import Noise
from minllm.course.checks.mismatch import expect

Arrays = Mapping[str, Any]  # the reader's arrays by the name of their parameter
Suspects = Sequence[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """One size at which a function is checked.

    catches: the misconception that fails here. size: see Contest.size_names. spread: standard deviation of the inputs.
    """

    name: str
    catches: str
    size: tuple[int, ...]
    spread: float = 1.0


@dataclass(frozen=True)
class Contest:
    """What a race is about. Arrays are C-contiguous, inputs and output of one dtype; the last parameter is the output.

    name: of the reader's function. equation: what it computes. parameters: its parameters, with the shape of each. axes: what the axes of
    the output count. size_names: what the numbers of a size are. cases: the checks in the simulator, from simple to hard. traced_size,
    raced_size: for the trace in the simulator and for the race on a GPU. inputs(size, dtype, noise, spread): the input arrays by parameter.
    out_shape(inputs). reference(inputs): the right output, float32. suspects(inputs): the results of likely mistakes. flops(size): what a
    race counts; None if it counts bytes. rivals: names of the package's kernels. why_not(rival, size, dtype, capability): why one cannot
    run, or None. launcher(rival, arrays, ops): a call that launches one. peers(dtype): names of torch_peers.PEERS. peer_inputs(arrays,
    ops): the arrays under the names that peers know.
    """

    name: str
    equation: str
    parameters: Mapping[str, str]
    axes: tuple[str, ...]
    size_names: tuple[str, ...]
    cases: tuple[Case, ...]
    traced_size: tuple[int, ...]
    raced_size: tuple[int, ...]
    inputs: Callable[[tuple[int, ...], np.dtype, Noise, float], dict[str, np.ndarray]]
    out_shape: Callable[[Arrays], tuple[int, ...]]
    reference: Callable[[Arrays], np.ndarray]
    suspects: Callable[[Arrays], Suspects]
    flops: Callable[[tuple[int, ...]], int] | None
    rivals: tuple[str, ...]
    why_not: Callable[[str, tuple[int, ...], str, tuple[int, int] | None], str | None]
    launcher: Callable[[str, Arrays, Any], Callable[[], None]]
    peers: Callable[[np.dtype], tuple[str, ...]]
    peer_inputs: Callable[[Arrays, Any], dict[str, Any]]

    @property
    def call(self) -> str:
        """The call of the reader's function, as text."""
        return f"{self.name}({', '.join(self.parameters)})"

    @property
    def unit(self) -> str:
        """The unit of speed."""
        return TFLOP_S if self.flops else TB_S

    def runners(self, size: tuple[int, ...], dtype: np.dtype, capability: tuple[int, int] | None = None) -> list[str]:
        """The rivals that run at this size. capability: the GPU's; None in the simulator."""
        return [name for name in self.rivals if not self.why_not(name, size, dtype.name, capability)]

    def least_bytes(self, arrays: Arrays) -> int:
        """Bytes of every array once, the output included: what a launch must move at least."""
        return sum(array.nbytes for array in arrays.values())

    def expect(self, out: np.ndarray, inputs: Arrays) -> None:
        """Raise Mismatch, which names the likely mistake, at the first wrong element of `out`."""
        expect("out", out, self.reference(inputs), self.axes, self.suspects(inputs))


def in_float64(arrays: Arrays) -> list[np.ndarray]:
    """The arrays as float64, in order."""
    return [np.asarray(array).astype(np.float64) for array in arrays.values()]
