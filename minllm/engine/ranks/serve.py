"""What ranks other than 0 run: load their share, then execute what rank 0 publishes until it closes the channel."""

from collections import deque

from minllm.engine.loading import load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.published import PublishedTables
from minllm.engine.ranks.rank_runner import Capture, Execute, Score, forward_of
from minllm.engine.ranks.share import RankShare
from minllm.parallel.processes import Rank

READY = "ready"
STATE = "state"  # asks for the words of the slots' state, which must be the same on all ranks


def serve(rank: Rank, options: EngineOptions) -> None:
    """Load, say so, and execute. Steps are launched ahead of reading results, as on rank 0, which reads them for the user."""
    runner = load_engine(options, share=RankShare(rank, options)).runner
    runner.policy = runner.slots.policy = PublishedTables(runner.policy.block_size)
    rank.channel.send(READY)
    launched: deque = deque()
    while True:
        try:
            message = rank.channel.recv()
        except EOFError:  # rank 0 has closed
            return
        match message:
            case Execute(step):
                launched.append(runner.execute(step))
                while len(launched) > runner.steps_ahead:
                    for result in launched.popleft():
                        result.wait()
            case Score(batch):
                runner.ops.to_host(forward_of(runner, batch))
            case Capture(kinds):
                runner.capture_graphs(kinds)
            case _:
                rank.channel.send(runner.ops.to_host(runner.slots.state.words))
