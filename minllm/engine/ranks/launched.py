"""Ranks started by a launcher: every process runs the same program, and meets the others in each call of its LLM.

    rank 0    announces a call, computes and publishes steps as always, and sends its return value or error to all
    others    compare the call with their own, execute the steps that rank 0 publishes, and return or raise the same

So all ranks get the same outputs, bit for bit, even if clocks or a user's functions give different results on each.
"""

import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from importlib import metadata
from typing import Any, NamedTuple

from minllm.engine.build.engine import Engine, load_engine, model_config
from minllm.engine.options import EngineOptions
from minllm.engine.progress import Progress
from minllm.engine.ranks.check import check_split
from minllm.engine.ranks.rank_runner import LeadingRunner
from minllm.engine.ranks.serve import Follower
from minllm.engine.ranks.share import RankShare
from minllm.errors import InvalidRequestError, MinLLMError
from minllm.parallel.launched.environment import launched_rank
from minllm.parallel.launched.ranks import LaunchedRanks
from minllm.parallel.processes import RankError, is_effect
from minllm.parallel.ranks_per_gpu import ranks_per_gpu
from minllm.parallel.time_limits import rendezvous_seconds, step_seconds
from minllm.runtime.device import device_names

OWN_TO_EACH = ("model",)  # options that may differ: a host may have its own copy of the model


class Call(NamedTuple):
    """A message: rank 0 begins a call."""

    name: str
    digest: str  # SHA-256 of the first argument


class Returned(NamedTuple):
    """A message: the return value or the error of a call on rank 0."""

    value: object
    error: Exception | None


class LaunchedProgram:
    """The calls in which the ranks of a program meet. On rank 0, the runner sends to the other ranks through it."""

    def __init__(self, ranks: LaunchedRanks, follower: Follower | None):
        """follower: executes the steps that rank 0 publishes; None on rank 0."""
        self.ranks, self.follower = ranks, follower
        self.check, self.failed, self.end, self.replies, self.close = ranks.check, ranks.failed, ranks.end, ranks.replies, ranks.close
        self._is_in_call = False

    def send(self, message: object) -> None:
        """Send a message to every other rank, which must be in the same call. Raises RankError or InvalidRequestError."""
        if not self._is_in_call:
            raise InvalidRequestError(
                'With distributed_executor_backend="external_launcher" the ranks meet in generate(), chat(), beam_search(), logits() and '
                "perplexity() only: use these, or let one process start the ranks (leave the option out)."
            )
        self.ranks.send(message)

    def call(self, name: str, argument: Any, work: Callable[[], Any]) -> Any:
        """On all ranks, the result or the error of work() on rank 0. A call within a call just returns work().

        argument: must be the same on all ranks. Raises RankError if a rank has ended, or makes another call.
        """
        if self._is_in_call:
            return work()
        self.ranks.check()
        self._is_in_call = True
        try:
            call = Call(name, hashlib.sha256(repr(argument).encode()).hexdigest())
            return self._lead(call, work) if self.follower is None else self._follow(self.follower, call)
        finally:
            self._is_in_call = False

    def _lead(self, call: Call, work: Callable[[], Any]) -> Any:
        """Rank 0's call."""
        self.ranks.send(call)
        try:
            value = work()
        except RankError:
            raise
        except BaseException as error:
            self.ranks.send(Returned(None, _sendable(error)))
            raise
        self.ranks.send(Returned(value, None))
        return value

    def _follow(self, follower: Follower, call: Call) -> Any:
        """The call of any other rank."""
        try:
            begun = follower.follow()
            if begun != call:
                raise InvalidRequestError(
                    f"Rank {self.ranks.own.rank} calls {call.name}(), and rank 0 calls {begun.name}()"
                    f"{' with another first argument' * (begun.name == call.name)}: every rank must make the same calls in the same order."
                )
            returned = follower.follow()
        except BaseException as error:
            raise self.ranks.failed(error) from error
        if returned.error is not None:
            raise returned.error
        return returned.value


def called_on_all_ranks(method: Callable) -> Callable:
    """Decorate a method of LLM that all ranks of a launched program call together. Without a launcher, the method is unchanged."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        program, work = self.engine.program, functools.partial(method, self, *arguments, **named)
        if program is None:
            return work()
        compared = arguments[0] if arguments else named.get("prompts", named.get("token_ids"))
        return program.call(method.__name__, compared, work)

    return call


def load_launched(options: EngineOptions, progress: Progress | None = None) -> Engine:
    """This rank's Engine; its `program` makes the calls of all ranks.

    Raises the errors of load_engine, CommunicationError if the ranks do not meet, or RankError if another rank fails.
    """
    launched = launched_rank(os.environ, options.num_ranks)
    gpus = device_names() if options.resolved_device() == "cuda" else []
    place = 0 if len(gpus) == 1 else launched.local_rank  # a launcher may make only one GPU visible to each rank
    check_split(options, place + 1)
    gpu = place // ranks_per_gpu()
    if options.num_ranks == 1:
        return load_engine(options, progress)
    ranks = LaunchedRanks(launched, agreement(options, gpus[gpu : gpu + 1]), rendezvous_seconds(), gpu)
    try:
        engine = load_engine(options, progress, RankShare(ranks.own, options))
        follower = Follower(engine.runner, ranks.own) if launched.rank else None
        program = LaunchedProgram(ranks, follower)
        if isinstance(engine.runner, LeadingRunner):
            ranks.replies()  # all have loaded
            ranks.own.host.limit_waits(step_seconds())
            engine.runner.processes = program
    except BaseException as error:
        failure = ranks.failed(error)
        if is_effect(error):
            raise failure from error
        raise
    return replace(engine, processes=ranks, program=program)


def agreement(options: EngineOptions, gpu: list[str]) -> dict[str, str]:
    """{name: value} of everything that must be the same on all ranks."""
    try:
        version = metadata.version("minllm")
    except metadata.PackageNotFoundError:  # imported from its sources
        version = "of the sources"
    told = {one.name: repr(getattr(options, one.name)) for one in fields(options) if one.name not in OWN_TO_EACH}
    told["kernel_variants"] = repr(sorted((options.kernel_variants or {}).items()))
    config = hashlib.sha256(repr(model_config(options)).encode()).hexdigest()[:12]
    of_machine = {"device": options.resolved_device(), "GPU": ", ".join(gpu) or "none"}
    return {"minllm": version, "numpy": metadata.version("numpy"), "model's config": config} | told | of_machine


def _sendable(error: BaseException) -> Exception:
    """The error, or a MinLLMError with its text if it cannot be pickled."""
    try:
        if isinstance(error, Exception) and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # noqa: BLE001 - whatever the class of a user's error does
        pass
    return MinLLMError(f"The call has failed on rank 0: {error!r}")
