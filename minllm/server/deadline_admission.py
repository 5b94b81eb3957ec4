"""Whether a request would miss its deadline: then it is refused at once, and takes no work from others.

`places` completions are computed at a time, each for `seconds` on average. If `total` are open with a new one among them, total - places
have to end before it begins. `places` of them end per `seconds`, so that it ends after

    seconds * (1 + max(0, total - places) / places)

This is Little's law for a queue in order of arrival. It knows nothing of lengths and priorities.
"""

NEWEST = 0.1  # weight of the newest completion in the mean


class DeadlineAdmission:
    """Predicts whether a completion will end in time. All times have one unit, the caller's: seconds in the server."""

    def __init__(self, places: int):
        self.places = places
        self.seconds: float | None = None  # mean time in a place; None until a completion has ended

    def observe(self, seconds: float) -> None:
        """Take the time for which a completion held its place. Its time in the queue does not count: that is predicted."""
        self.seconds = seconds if self.seconds is None else (1 - NEWEST) * self.seconds + NEWEST * seconds

    def admits(self, total: int, deadline: float | None) -> bool:
        """Whether a new completion will end within `deadline`, None for no limit. total: open completions, the new one among them."""
        # exercise: serving.admits
        if deadline is None or self.seconds is None:
            return True
        ahead = max(0, total - self.places)
        return self.seconds * (1 + ahead / self.places) <= deadline
        # end exercise
