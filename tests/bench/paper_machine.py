"""What a benchmark asks of a machine and a clock, in a dry run: for counting what a step launches."""

from types import SimpleNamespace

from minllm.engine.kernels_needed import DryRunMachine


class PaperMachine(DryRunMachine):
    """A machine whose graphs are the functions themselves."""

    def capture(self, function):
        return SimpleNamespace(launch=function, result=None)


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
