"""Transfers that happen late, as on a GPU: what was started is done when somebody waits for it, or at any time before."""

import numpy as np

from minllm.cache.transfers import HostTransfers


class LateEvent:
    """Done once so much of what was started on a stream is done."""

    def __init__(self, stream, count):
        self.stream, self.count = stream, count

    @property
    def is_done(self):
        self.stream.transfers.maybe_go_on()
        return self.stream.num_done >= self.count

    def sync(self):
        while self.stream.num_done < self.count:
            self.stream.go_on()


class LateStream:
    """What was started on it, done in this order. Other streams know nothing of it but for events that they wait for."""

    def __init__(self, transfers):
        self.transfers, self.started, self.num_done = transfers, [], 0

    def start(self, action):
        self.started.append(action)

    def record(self):
        return LateEvent(self, len(self.started))

    def wait(self, event):
        self.start(event.sync)

    def go_on(self):
        action, self.started[self.num_done] = self.started[self.num_done], None
        action()
        self.num_done += 1


class LateTransfers(HostTransfers):
    """Two streams, which go on by turns that chance decides. Kernels, which here are the test's own reads and writes, happen at once."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.gathering, self.copying = LateStream(self), LateStream(self)

    def upload(self, host, array, stream):
        stream.start(lambda: HostTransfers.upload(self, host, array, stream))

    def download(self, array, host):
        self.copying.start(lambda: HostTransfers.upload(self, array, host, self.copying))

    def copy_blocks(self, source, to, pairs):
        self.gathering.start(lambda: HostTransfers.copy_blocks(self, source, to, pairs))

    def before_compute(self, event):
        event.sync()

    def maybe_go_on(self):
        for _ in range(self.random.integers(12)):
            stream = self.random.choice([self.gathering, self.copying])
            if stream.num_done < len(stream.started):
                stream.go_on()
