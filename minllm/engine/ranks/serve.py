"""What ranks other than 0 run: load their share, then execute what rank 0 publishes until it closes the channel."""

import contextlib
from collections import deque
from typing import Any

from minllm.engine.loading import load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.published import PublishedTables
from minllm.engine.ranks.rank_runner import Capture, Execute, RankRunner, Score, forward_of
from minllm.engine.ranks.share import RankShare
from minllm.parallel.processes import Rank

READY = "ready"
STATE = "state"  # asks for the words of the slots' state, which must be the same on all ranks


def serve(rank: Rank, options: EngineOptions) -> None:
    """Load, say so, and execute what comes."""
    follower = Follower(load_engine(options, share=RankShare(rank, options)).runner, rank)
    with contextlib.suppress(EOFError):  # rank 0 has closed
        follower.follow()


class Follower:
    """A rank other than 0 that has loaded. Steps are launched ahead of reading results, as on rank 0, which reads them for the user."""

    def __init__(self, runner: RankRunner, rank: Rank):
        self.runner, self.channel = runner, rank.channel
        runner.policy = runner.slots.policy = PublishedTables(runner.policy.block_size)
        self._launched: deque = deque()
        self.channel.send(READY)

    def follow(self) -> Any:
        """Execute what rank 0 publishes; returns the first message that asks for something else. EOFError if rank 0 has closed."""
        runner = self.runner
        while True:
            match message := self.channel.recv():
                case Execute(step):
                    self._launched.append(runner.execute(step))
                    while len(self._launched) > runner.steps_ahead:
                        for result in self._launched.popleft():
                            result.wait()
                case Score(batch):
                    runner.ops.to_host(forward_of(runner, batch))
                case Capture(kinds):
                    runner.capture_graphs(kinds)
                    self.channel.send(READY)
                case _ if message == STATE:
                    self.channel.send(runner.ops.to_host(runner.slots.state.words))
                case _:
                    return message
