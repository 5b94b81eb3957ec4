"""How many completions are open: what does not fit is refused at once, so that no queue grows without limit."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from minllm.server.deadline_admission import DeadlineAdmission
from minllm.server.errors import ApiError, too_many


class Admission:
    """Counts open completions, in all and per API key. deadlines: refuses those that would be late; None admits them."""

    def __init__(self, most: int, most_per_key: int | None, most_per_request: int, deadlines: DeadlineAdmission | None = None):
        self.most, self.most_per_key, self.most_per_request, self.deadlines = most, most_per_key, most_per_request, deadlines
        self.open: Counter[str] = Counter()

    def check_size(self, completions: int) -> None:
        """Raise ApiError for a request of more completions than any may have."""
        if completions > self.most_per_request:
            allowed = f"at most {self.most_per_request} prompts times n are allowed in a request"
            raise ApiError(f"{completions} completions were asked for, and {allowed}: divide it.", "n")

    @contextmanager
    def admitted(self, who: str, completions: int, deadline: float | None = None) -> Iterator[None]:
        """Holds places for a request's completions. Raises ApiError: 400 if it never fits, 429 if it does not fit now.

        deadline: seconds from now.
        """
        self.check_size(completions)
        total = self.open.total() + completions
        if total > self.most:
            raise too_many(f"The server is full: {self.open.total()} completions are open, and at most {self.most} may be. Try again.")
        if self.deadlines is not None and not self.deadlines.admits(total, deadline):
            raise too_many(f"The answer would come after its deadline of {deadline:g} s: {total - completions} completions are before it.")
        if self.most_per_key is not None and self.open[who] + completions > self.most_per_key:
            raise too_many(f"This API key has {self.open[who]} open completions, and at most {self.most_per_key} may be. Try again.")
        self.open[who] += completions
        try:
            yield
        finally:
            self.open[who] -= completions
            if not self.open[who]:
                del self.open[who]
