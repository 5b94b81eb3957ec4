"""The loop of ranks other than 0: load their share, then execute the steps that rank 0 publishes until it closes the channel."""

import contextlib
from collections import deque
from typing import Any

from minllm.engine.build.engine import load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.published import PublishedTables
from minllm.engine.ranks.rank_runner import Capture, Execute, Score, forward_of
from minllm.engine.ranks.share import RankShare
from minllm.engine.running.model_runner import ModelRunner
from minllm.parallel.processes import Rank

READY = "ready"
STATE = "state"  # message: send the words of the slots' state, which must be the same on all ranks


def serve(rank: Rank, options: EngineOptions) -> None:
    """Load this rank's share, report that it is ready, and execute messages until rank 0 closes."""
    follower = Follower(load_engine(options, share=RankShare(rank, options)).runner, rank)
    with contextlib.suppress(EOFError):  # rank 0 has closed
        follower.follow()


class Follower:
    """A loaded rank other than 0. Like rank 0, it launches steps ahead of reading results, but it drops the results."""

    def __init__(self, runner: ModelRunner, rank: Rank):
        self.runner, self.channel = runner, rank.to_leader
        tables: Any = PublishedTables(runner.policy.block_size)  # what a runner reads of a CachePolicy
        runner.policy = runner.slots.policy = tables
        self._launched: deque = deque()
        self.channel.send(READY)

    def follow(self) -> Any:
        """Execute the messages of rank 0; returns the first one of another kind. Raises EOFError if rank 0 has closed."""
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
