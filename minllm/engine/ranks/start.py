"""Start the ranks of an engine and load all of them."""

from dataclasses import replace

from minllm.engine.build.engine import Engine, load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.progress import Progress
from minllm.engine.ranks.check import check_split
from minllm.engine.ranks.launched import load_launched
from minllm.engine.ranks.rank_runner import LeadingRunner
from minllm.engine.ranks.serve import serve
from minllm.engine.ranks.share import RankShare
from minllm.parallel.communicator import CommunicationError
from minllm.parallel.processes import RankProcesses
from minllm.parallel.time_limits import step_seconds


def load_ranks(options: EngineOptions, progress: Progress | None = None) -> Engine:
    """The Engine of rank 0, with the other ranks as `processes`. Raises the errors of load_engine, or RankError if another rank fails.

    Options and the model's shape are checked before a process starts; a later failure ends all processes.
    """
    if options.is_launched:
        return load_launched(options, progress)
    check_split(options)
    processes = RankProcesses(options.num_ranks, serve, options)
    try:
        engine = load_engine(options, progress, RankShare(processes.own, options))
        processes.replies()  # all have loaded
        processes.own.host.limit_waits(step_seconds())
    except CommunicationError as error:
        raise processes.failed(error) from error
    except BaseException:
        processes.close()
        raise
    if isinstance(engine.runner, LeadingRunner):
        engine.runner.processes = processes
    return replace(engine, processes=processes)
