"""The part of a race that needs a GPU: the reader's function, the package's kernels and PyTorch's, timed in turn on the same arrays.

Numba's launches go to the stream that is timed, whichever stream the reader names, and short ones are captured in a graph, as the package's
own are (bench/timing.py). Memory that the function allocates per call stays allocated meanwhile, because a graph would use it again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher

from minllm.bench.kernel_case import TOLERANCE, relative_error
from minllm.bench.kernels import load_peers
from minllm.bench.timing import Call, CudaClock, input_sets, medians_in_turn
from minllm.catalogue.noise import Noise
from minllm.course.race.contest import Arrays, Contest
from minllm.course.race.file import function_of
from minllm.errors import ExerciseError, InvalidOptionError
from minllm.figures.bars import Bar, bars
from minllm.figures.figure import Figure
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.protocol import Ops
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import current_device

HALF_TOLERANCE = 1e-2  # relative error that float16 may have
MOST_SETS = 64  # sets of inputs: to make more takes minutes. Launches on less than about 1 MB therefore find their inputs in L2


@dataclass(frozen=True)
class Lap:
    """Median seconds of one contender's launch, and its speed in the contest's unit. is_peer: whether it is PyTorch's."""

    name: str
    seconds: float
    speed: float
    is_peer: bool = False


@dataclass(frozen=True)
class Times:
    """The laps of a race, the reader's first, and remarks on how they were measured. device: the name of the GPU."""

    device: str
    laps: Sequence[Lap]
    remarks: Sequence[str]


class ReaderClock(CudaClock):
    """The clock for the reader's function, which may do what no graph can capture: then `why` says so, and the host launches each call."""

    why = ""

    def graph(self, calls: Sequence[Call]) -> Call:
        """A call that replays the calls as one CUDA graph, or that makes them."""
        try:
            return super().graph(calls)
        except Exception as error:  # the driver, Numba and the reader's function raise their own
            self.why = f"{type(error).__name__}: {error}"
            return lambda: [call() for call in calls] and None


class Interface:
    """A DeviceArray with the CUDA array interface, from which Numba makes an array over the same memory."""

    def __init__(self, array: Array):
        self.array = array  # keeps the memory alive
        self.__cuda_array_interface__ = dict(shape=array.shape, typestr=array.dtype.str, data=(array.pointer, False), version=2)


@contextmanager
def launching_on(stream: Any) -> Iterator[list[CUDADispatcher]]:
    """Within this context Numba's launches go to `stream`, a cuda.core Stream; yields a list that gets their kernels."""
    configure, kernels = CUDADispatcher.configure, []

    def configured(kernel, griddim, blockdim, _=0, sharedmem=0):
        kernels.append(kernel)
        return configure(kernel, griddim, blockdim, stream, sharedmem)

    CUDADispatcher.configure = configured
    try:
        yield kernels
    finally:
        CUDADispatcher.configure = configure


def measure(path: Path, contest: Contest, size: tuple[int, ...], dtype: np.dtype) -> Times:
    """Check the reader's result on this GPU, then time all contenders.

    Raises ExerciseError if the result is wrong, or if the kernels are not numba-cuda's, so that no launch is on the timed stream.
    """
    device, ops = current_device(), CudaOps()
    noise = Noise()
    host = contest.inputs(size, dtype, noise, 1.0)
    shape = contest.out_shape(host)
    least = sum(array.nbytes for array in host.values()) + int(np.prod(shape)) * dtype.itemsize
    sets = [host, *(contest.inputs(size, dtype, noise, 1.0) for _ in range(min(input_sets(least, device.l2_bytes), MOST_SETS) - 1))]
    arrays = [{**{name: ops.array(one) for name, one in inputs.items()}, "out": ops.empty(shape, dtype)} for inputs in sets]
    with launching_on(ops.core_stream) as kernels, cuda.defer_cleanup():
        function, clock = function_of(path, contest), ReaderClock()
        own = [partial(function, *(cuda.as_cuda_array(Interface(one)) for one in each.values())) for each in arrays]
        own[0]()
        if not kernels:
            raise ExerciseError(f"{path} launches no kernel of numba-cuda, and only those are timed on a GPU")
        check_result(contest, ops.to_host(arrays[0]["out"]), host, dtype)
        names = contest.runners(size, dtype, device.compute_capability)
        rivals = [(name, [contest.launcher(name, each, ops) for each in arrays], CudaClock()) for name in names]
        peers, remarks = peers_of(contest, arrays, dtype, ops)
        contenders = [(path.name, own, clock), *rivals, *peers]
        seconds = medians_in_turn([(launches, timer) for _, launches, timer in contenders])
    if clock.why:
        remarks.append(f"{path.name} is timed with its launches by the host, because no graph can capture it: {clock.why}")
    work = contest.flops(size) if contest.flops else least
    laps = [Lap(name, took, work / took / 1e12, at > len(rivals)) for at, ((name, *_), took) in enumerate(zip(contenders, seconds))]
    return Times(device.name, laps, remarks)


def check_result(contest: Contest, out: np.ndarray, host: Arrays, dtype: np.dtype) -> None:
    """Raise ExerciseError if the output of the reader's function is wrong."""
    error, allowed = relative_error(out, contest.reference(host)), TOLERANCE.get(dtype, HALF_TOLERANCE)
    if not error <= allowed:
        raise ExerciseError(
            f"on this GPU, at the size of the race, the result of {contest.name} is wrong, so it was not timed: relative error "
            f"{error:.2g}, allowed {allowed:.2g}. Does an index exceed 32 bits, or the grid 65,535 blocks along y or z?"
        )


Contender = tuple[str, Sequence[Call], Any]  # name, one launch per set of inputs, clock


def peers_of(contest: Contest, arrays: Sequence[Arrays], dtype: np.dtype, ops: Ops) -> tuple[list[Contender], list[str]]:
    """(PyTorch's contenders, remarks on those that are missing)."""
    names = contest.peers(dtype)
    if not names:
        return [], [f"PyTorch's fast kernels for {contest.name} take no {dtype.name}: --dtype float16 races them too"]
    try:
        torch_peers = load_peers()
    except InvalidOptionError:
        return [], [f"PyTorch is not installed, or finds no GPU: {', '.join(names)} did not race"]
    found, remarks = [], []
    inputs = [contest.peer_inputs(each, ops) for each in arrays]
    for name in names:
        try:
            peer, clock = torch_peers.PEERS[name](inputs), torch_peers.TorchClock()
            clock.seconds(peer.launches[:1])
        except RuntimeError as refusal:  # PyTorch raises it for shapes that a backend does not support
            remarks.append(f"{name} does not take this: {str(refusal).splitlines()[0][:120]}")
        else:
            found.append((f"PyTorch, {name}", peer.launches, clock))
    return found, remarks


def table(contest: Contest, times: Times) -> list[str]:
    """One line per contender: time and speed."""
    fastest = max((lap.speed for lap in times.laps if lap.is_peer), default=None)
    lines = []
    for lap in times.laps:
        of_peer = "" if fastest is None or lap.is_peer else f"   {lap.speed / fastest:.3f} of PyTorch's speed"
        lines.append(f"{lap.name:<32} {1e6 * lap.seconds:>12,.1f} µs {lap.speed:>10,.3f} {contest.unit}{of_peer}")
    return [*lines, *times.remarks]


def picture(contest: Contest, times: Times, caption: str) -> Figure:
    """Bars of the speeds."""
    colours = {True: 2, False: 0}
    return bars(
        [Bar(lap.name, float(f"{lap.speed:.3g}"), colour=colours[lap.is_peer] if at else 1) for at, lap in enumerate(times.laps)],
        unit=contest.unit,
        title=f"{contest.name} on {times.device}",
        caption=caption,
    )
