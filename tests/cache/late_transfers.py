"""Transfers that happen late, as on a GPU: a copy that was started is done when somebody waits for it, or at any time before."""

import numpy as np

from minllm.cache.transfers import HostTransfers


class Event:
    """Done once so many of the started copies are done."""

    def __init__(self, transfers, count):
        self.transfers, self.count = transfers, count

    @property
    def is_done(self):
        self.transfers.maybe_go_on()
        return self.transfers.num_done >= self.count

    def sync(self):
        self.transfers.go_on_to(self.count)


class LateTransfers(HostTransfers):
    """One stream in order. Kernels, which here are the test's own reads and writes, happen at once."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.started, self.num_done = [], 0

    def upload(self, host, array):
        self.started.append(lambda: HostTransfers.upload(self, host, array))

    def copy_blocks(self, source, to, pairs):
        self.started.append(lambda: HostTransfers.copy_blocks(self, source, to, pairs))

    def record(self):
        return Event(self, len(self.started))

    def before_compute(self, event):
        event.sync()

    def go_on_to(self, count):
        while self.num_done < count:
            self.started[self.num_done]()
            self.started[self.num_done] = None
            self.num_done += 1

    def maybe_go_on(self):
        self.go_on_to(int(self.random.integers(self.num_done, len(self.started) + 1)))
