"""A virtual clock: the time of a host, and of a device that computes what was launched, in order, while the host goes on.

Nothing is computed and nobody sleeps. The unit of time is the caller's.
"""

from dataclasses import dataclass
from math import inf, nextafter


@dataclass
class VirtualClock:
    """Time that passes when the simulation says so. time: the host's. device_ends: when all that was launched will be computed."""

    time: float = 0.0
    device_ends: float = 0.0

    def now(self) -> float:
        """The time since the start."""
        return self.time

    def sleep(self, duration: float) -> None:
        """Let this time pass; a little always passes, so that waiting for a moment ends even if the sum is rounded."""
        self.time = max(self.time + duration, nextafter(self.time, inf))

    def launch(self, duration: float) -> tuple[float, float]:
        """(begin, end) of work of the device, which begins now, or when the work before it ends. The host goes on at once."""
        begin = max(self.time, self.device_ends)
        self.device_ends = begin + duration
        return begin, self.device_ends

    def wait(self, until: float) -> None:
        """Let the host wait until then, unless that time has passed."""
        self.time = max(self.time, until)
