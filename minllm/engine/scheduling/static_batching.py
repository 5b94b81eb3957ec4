"""Static batching: a batch starts as a whole, and the next one starts when all of it has ended.

This is the simplest way to serve a model, and what FasterTransformer does. Requests that end early leave their rows empty, and a request
that arrives waits for the longest answer of the batch before it. Iteration-level scheduling removes both costs.
"""


class StaticBatching:
    """Admits only while a batch forms: from the moment when nothing runs until the first decode step."""

    def __init__(self):
        self._is_forming = True

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        self._is_forming |= not scheduler.queues.running
        scheduler.prefill(step, admits=self._is_forming)
        if not step.spans:
            self._is_forming = False
            scheduler.decode(step)
