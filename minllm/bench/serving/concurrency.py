"""max_concurrency: the places that clients have for unfinished requests, and when each became free.

A driver learns only after a step that requests arrived or ended during it, and then works out what clients would have done: each request,
in the order of arrival, takes the place that has been free for longest, at its arrival or, if the place became free later, then.
"""

import heapq


class Places:
    """`max_concurrency` places, free from second 0; None is no limit."""

    def __init__(self, max_concurrency: int | None, num_requests: int):
        count = num_requests if max_concurrency is None else min(max_concurrency, num_requests)
        self.free = [0.0] * count  # a heap: the second at which each free place became free
        self.is_limited = max_concurrency is not None

    def take(self, arrival: float) -> float:
        """Take a place for a request; the second at which it starts."""
        return max(arrival, heapq.heappop(self.free))

    def give_back(self, time: float) -> None:
        """The request in a place ended at this second."""
        heapq.heappush(self.free, time if self.is_limited else 0.0)
