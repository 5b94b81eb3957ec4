"""GPU time of a launch: medians over launches that cycle through several sets of inputs.

Time is read from events on the stream. For short launches events would measure the host, which needs about 15 µs per launch, so a launch
that is not clearly longer is captured many times into a CUDA graph, and replays of the graph are timed.

The sets of inputs together fill the L2 cache several times: each launch then reads its inputs from HBM, as it would read a model's weights.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

REPLAY_BELOW = 1e-3  # seconds; well above the host's time per launch, which the first estimate includes
GRAPH_SECONDS = 2e-3  # approximate duration of one replay
WARM_UP, REPLAYS = 3, 20
SECONDS = 0.2  # total time for launches that are not replayed
FEWEST, MOST = 7, 50
REST = 0.1  # seconds of pause before each measurement of contenders, so that the GPU cools down
CACHES_TO_FILL = 4  # total size of all input sets, relative to the L2 cache

Call = Callable[[], None]


class Clock(Protocol):
    """Runs calls that launch on its stream, and measures the time of each on that stream."""

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """Run the calls one after another, wait for them, and return the seconds of each."""

    def graph(self, calls: Sequence[Call]) -> Call:
        """Capture what the calls launch, without running it, and return a call that replays it."""


class CudaClock:
    """The clock for minllm's launches, on the stream of all its kernels."""

    def __init__(self):
        from minllm.runtime.stream import compute_stream

        self.stream = compute_stream()

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """The GPU seconds of each call, from events on the stream."""
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
        """A call that replays the launches of `calls` as one CUDA graph."""
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
    """Median seconds per launch; `launches` has one launch per set of inputs."""
    return statistics.median(sampler(launches, clock)())


def medians_in_turn(contenders: Sequence[tuple[Sequence[Call], Clock]]) -> list[float]:
    """Median seconds per launch for each (launches, clock), measured in balanced order: the second round is the first reversed.

    A GPU at its power limit lowers its clock, which would penalise the last contender. The order and pauses give all the same clocks.
    """
    samplers = [sampler(*contender) for contender in contenders]
    found: list[list[float]] = [[] for _ in samplers]
    forward = list(zip(found, samplers, strict=True))
    for samples, sample in [*forward, *reversed(forward)]:
        time.sleep(REST if len(samplers) > 1 else 0)
        samples.extend(sample())
    return [statistics.median(samples) for samples in found]


def sampler(launches: Sequence[Call], clock: Clock) -> Callable[[], list[float]]:
    """A function that times the launches, one per set of inputs; it returns several samples of seconds per launch."""
    clock.seconds(launches)  # warm-up: compiles, loads, allocates
    estimate = statistics.median(clock.seconds(launches))
    if estimate >= REPLAY_BELOW:
        count = min(MOST, max(FEWEST, int(SECONDS / estimate)))
        in_turn = [launches[i % len(launches)] for i in range(count + 1)]
        return lambda: clock.seconds(in_turn)[1:]
    rounds = max(1, round(GRAPH_SECONDS / (estimate * len(launches))))
    replay = clock.graph(list(launches) * rounds)
    return lambda: [seconds / (rounds * len(launches)) for seconds in clock.seconds([replay] * (WARM_UP + REPLAYS))[WARM_UP:]]
