"""GPU time of a launch: medians, over several sets of inputs in turn.

Time is read from events on the stream. For a short launch they would measure the host, which needs some 15 µs per launch, so a launch
that is not clearly longer is captured many times into a CUDA graph, and the graph's replays are timed.
There are enough sets of inputs, used in turn, to fill the L2 cache several times: each launch then finds its inputs in
HBM, where a model's weights would be.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

REPLAY_BELOW = 1e-3  # seconds; the first estimate includes the host's time, so this is well above what a host needs
GRAPH_SECONDS = 2e-3  # approximate duration of one replay
WARM_UP, REPLAYS = 3, 20
SECONDS = 0.2  # total time for launches that are not replayed
FEWEST, MOST = 7, 50
ROUNDS = 2  # rounds in which contenders are measured in turn
REST = 0.1  # seconds before each measurement of contenders, so that none inherits the previous one's heat
CACHES_TO_FILL = 4  # total size of all input sets, relative to the L2 cache

Call = Callable[[], None]


class Clock(Protocol):
    """Runs calls that launch on its stream, and reports how long each took there."""

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """Run the calls one after another, wait for them, and return the seconds of each."""

    def graph(self, calls: Sequence[Call]) -> Call:
        """Capture what the calls launch, without running it, and return a call that replays it."""


class CudaClock:
    """The clock of our own launches, on the stream of all kernels."""

    def __init__(self):
        from minllm.runtime.stream import compute_stream

        self.stream = compute_stream()

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """As in `Clock`."""
        from cuda.bindings import driver

        from minllm.runtime.device import check_driver
        from minllm.runtime.stream import stream_handle

        handle = stream_handle(self.stream)
        events = [check_driver(driver.cuEventCreate(0), "make an event") for _ in range(len(calls) + 1)]
        try:
            check_driver(driver.cuEventRecord(events[0], handle), "record an event")
            for call, event in zip(calls, events[1:], strict=True):
                call()
                check_driver(driver.cuEventRecord(event, handle), "record an event")
            check_driver(driver.cuStreamSynchronize(handle), "wait for the kernels that are timed")
            pairs = zip(events[:-1], events[1:], strict=True)
            return [1e-3 * check_driver(driver.cuEventElapsedTime(*pair), "read the time") for pair in pairs]
        finally:
            for event in events:
                driver.cuEventDestroy(event)

    def graph(self, calls: Sequence[Call]) -> Call:
        """As in `Clock`."""
        from minllm.runtime.graph import CapturedGraph
        from minllm.runtime.memory import device_memory

        def run_all():
            for call in calls:
                call()

        return CapturedGraph(run_all, self.stream, device_memory()).launch


def input_sets(set_bytes: int, cache_bytes: int) -> int:
    """The number of input sets, of `set_bytes` each, that fill a cache of `cache_bytes` several times over."""
    return max(1, math.ceil(CACHES_TO_FILL * cache_bytes / set_bytes))


def median_seconds(launches: Sequence[Call], clock: Clock) -> float:
    """Seconds per launch; `launches` has one per set of inputs."""
    return statistics.median(sampler(launches, clock)())


def medians_in_turn(contenders: Sequence[tuple[Sequence[Call], Clock]]) -> list[float]:
    """Seconds per launch for each (launches, clock), measured in turn, several rounds.

    A GPU at its power limit lowers its clock, which would penalise the last contender. In turn and rested, all run at the same clocks.
    """
    samplers = [sampler(*contender) for contender in contenders]
    found: list[list[float]] = [[] for _ in samplers]
    for _ in range(ROUNDS):
        for samples, sample in zip(found, samplers, strict=True):
            time.sleep(REST if len(samplers) > 1 else 0)
            samples.extend(sample())
    return [statistics.median(samples) for samples in found]


def sampler(launches: Sequence[Call], clock: Clock) -> Callable[[], list[float]]:
    """A function that measures the launches, one per set of inputs, at each call: seconds per launch, several times."""
    clock.seconds(launches)  # compiles, loads, allocates
    estimate = statistics.median(clock.seconds(launches))
    if estimate >= REPLAY_BELOW:
        count = min(MOST, max(FEWEST, int(SECONDS / estimate)))
        in_turn = [launches[i % len(launches)] for i in range(count + 1)]
        return lambda: clock.seconds(in_turn)[1:]
    rounds = max(1, round(GRAPH_SECONDS / (estimate * len(launches))))
    replay = clock.graph(list(launches) * rounds)
    return lambda: [seconds / (rounds * len(launches)) for seconds in clock.seconds([replay] * (WARM_UP + REPLAYS))[WARM_UP:]]
