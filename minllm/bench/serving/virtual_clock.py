"""A virtual clock for a host and a device that executes launches in order while the host continues.

Nothing is computed and no thread sleeps. The caller chooses the unit of time.
"""

from dataclasses import dataclass
from math import inf, nextafter


@dataclass
class VirtualClock:
    """Time that the simulation advances. time: the host's. device_ends: the end of all work launched so far."""

    time: float = 0.0
    device_ends: float = 0.0

    def now(self) -> float:
        """The time since the start."""
        return self.time

    def sleep(self, duration: float) -> None:
        """Advance the host's time; always by at least one float step, so that waiting loops end even if the sum is rounded."""
        self.time = max(self.time + duration, nextafter(self.time, inf))

    def launch(self, duration: float) -> tuple[float, float]:
        """(begin, end) of work on the device, which begins now or after earlier work. The host does not wait."""
        begin = max(self.time, self.device_ends)
        self.device_ends = begin + duration
        return begin, self.device_ends

    def wait(self, until: float) -> None:
        """Advance the host's time to `until`, unless that is in the past."""
        self.time = max(self.time, until)
