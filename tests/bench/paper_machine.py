"""What a benchmark asks of a machine and a clock, in a dry run: for counting what a step launches."""

import numpy as np


class PaperMachine:
    """What a DecodeGraph asks of the machine: a graph is the function itself."""

    def capture(self, function):
        self.launch, self.result = function, None
        return self

    def write(self, array, host):
        assert array.shape == np.shape(host)


class CountingClock:
    """A clock by which every launch takes a microsecond; `launches` is the list that they are noted in."""

    def __init__(self, launches):
        self.launches = launches

    def seconds(self, calls):
        found = []
        for call in calls:
            before = len(self.launches)
            call()
            found.append(1e-6 * (len(self.launches) - before))
        return found

    def graph(self, calls):
        return lambda: [call() for call in calls]
