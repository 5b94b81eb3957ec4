"""max_concurrency: slots of clients for unfinished requests, with the time at which each became free.

A driver notices only after a step that requests arrived or ended during it, and then reconstructs what clients would have done: each
request, in the order of arrival, takes the slot that has been free for longest, at its arrival or when the slot became free, if that is
later.
"""

import heapq


class Places:
    """`max_concurrency` slots, free from second 0; None means no limit."""

    def __init__(self, max_concurrency: int | None, num_requests: int):
        count = num_requests if max_concurrency is None else min(max_concurrency, num_requests)
        self.free = [0.0] * count  # a heap: for each free slot the second at which it became free
        self.is_limited = max_concurrency is not None

    def take(self, arrival: float) -> float:
        """Take a slot for a request; returns the second at which the request starts."""
        return max(arrival, heapq.heappop(self.free))

    def give_back(self, time: float) -> None:
        """Free the slot of a request that ended at this second."""
        heapq.heappush(self.free, time if self.is_limited else 0.0)
