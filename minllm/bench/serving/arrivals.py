"""Arrival times of requests: all at once, a Poisson process, or bursts.

As in vLLM's `bench serve` (vllm/benchmarks/serve.py, get_request), the gaps follow a gamma distribution with shape `burstiness` and mean
1 / rate: 1 gives exponential gaps and a Poisson process, lower values bursts, higher values more even gaps, inf equal gaps. The sum of the
gaps is scaled to count / rate, so that a run offers exactly the rate that it reports. The same seed therefore gives the same trace at every
rate, only faster or slower.
"""

import itertools
import math
import random
from dataclasses import replace

from minllm.bench.serving.workload import BenchRequest
from minllm.errors import InvalidOptionError


def check_rate(rate: float) -> None:
    """Raises InvalidOptionError unless `rate`, in requests per second, is above 0; inf is allowed."""
    if not rate > 0:  # also refuses NaN
        raise InvalidOptionError(f"--request-rate {rate:g} is not allowed: give requests per second above 0, or inf for all at once.")


def check_burstiness(burstiness: float) -> None:
    """Raises InvalidOptionError unless `burstiness` is above 0; inf is allowed."""
    if not burstiness > 0:
        raise InvalidOptionError(
            f"--burstiness {burstiness:g} is not allowed: give a number above 0; 1 is a Poisson process, less makes bursts, inf is even."
        )


def arrival_times(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds at which `count` requests arrive, ascending; the last arrives at count / rate, or all at 0 if rate is inf."""
    check_rate(rate)
    check_burstiness(burstiness)
    if math.isinf(rate):
        return [0.0] * count
    generator = random.Random(f"arrivals {seed}")  # independent of the lengths, which are drawn with the seed itself
    gaps = [1.0 if math.isinf(burstiness) else generator.gammavariate(burstiness, 1.0) for _ in range(count)]
    times = list(itertools.accumulate(gaps))
    total = times[-1] or 1.0  # a burstiness near 0 can make every gap 0
    return [time / total * count / rate for time in times]


def arriving(requests: list[BenchRequest], rate: float, burstiness: float = 1.0, seed: int = 0) -> list[BenchRequest]:
    """The requests with new arrival times."""
    times = arrival_times(len(requests), rate, burstiness, seed)
    return [replace(request, arrival=time) for request, time in zip(requests, times, strict=True)]
