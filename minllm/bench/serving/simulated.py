"""A simulated server: the package's scheduler and engine loop on a virtual clock; costs/serving.py gives the time of a step.

Nothing is computed and no thread sleeps, so a minute of GPU time takes seconds on any machine, with the same result every time. The
simulation shows which requests wait, which are computed together, and which are preempted. Times are floors: bytes over bandwidth, FLOPs
over peak, without launches and without the host. `minllm bench serve` measures the same workloads on a real engine, with the same driver.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from minllm.bench.serving.metrics import ServedRun
from minllm.bench.serving.run import serve
from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.bench.serving.workload import BenchRequest
from minllm.cache.paged import PagedPolicy
from minllm.costs.serving import StepCosts
from minllm.costs.step_limits import STEP_LIMITS
from minllm.engine.core import EngineCore
from minllm.engine.engine_stats import EngineStats, engine_stats
from minllm.engine.requests.output_text import NoText
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.forward_result import ForwardResult
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.policy import SchedulingPolicy
from minllm.engine.scheduling.preemption import Preemption
from minllm.engine.scheduling.queues import Queues
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.scheduling.step import Step

TOKEN = 7  # the token that every request samples; its value is not used
BLOCK_SIZE = 16


@dataclass(frozen=True)
class TimedSpan:
    """A span of a simulated step: tokens `start` to `start + length` of a request."""

    request_id: str
    start: int
    length: int
    decodes: bool


@dataclass(frozen=True)
class TimedStep:
    """A simulated step, in seconds of the virtual clock."""

    begin: float
    end: float
    spans: tuple[TimedSpan, ...]


@dataclass
class SimulatedRunner:
    """Executes steps by advancing the clock.

    steps_ahead: 1 as on a GPU, where a step is planned while the previous one runs.
    """

    costs: StepCosts
    clock: VirtualClock
    steps_ahead: int = 1
    steps: list[TimedStep] = field(default_factory=list)

    def execute(self, step: Step) -> list["PendingStep"]:
        """The same as in ModelRunner, with the results TOKEN."""
        contexts = [span.start + 1 for span in step.spans if span.decodes]
        chunks = [(span.start, span.length) for span in step.spans if not span.decodes]
        begin, end = self.clock.launch(self.costs.seconds(contexts, chunks, len(step.sampled)))
        spans = tuple(TimedSpan(span.sequence.request_id, span.start, span.length, span.decodes) for span in step.spans)
        self.steps.append(TimedStep(begin, end, spans))
        return [PendingStep(self.clock, end, step.sampled)]


@dataclass
class PendingStep:
    """The results of a step that ends at `end`, in seconds of the virtual clock."""

    clock: VirtualClock
    end: float
    sampled: list[Sequence]

    def wait(self) -> ForwardResult:
        """The same as in PendingForward: advances the clock to the end of the step."""
        self.clock.wait(self.end)
        return ForwardResult(self.sampled, [TOKEN] * len(self.sampled), None, [])


class SimulatedEngine:
    """The interface of an engine that the driver (run.py) uses, around the real scheduler.

    policy: a name of POLICIES, or a SchedulingPolicy. kv_cache_tokens: the size of the cache. preemption: "recompute" or "drop"; a swap
    copies real memory, and `minllm bench serve --compare-preemption` measures it.
    """

    def __init__(
        self, costs: StepCosts, policy: str | SchedulingPolicy = "split_fuse", *, max_num_seqs: int = STEP_LIMITS.sequences,
        max_num_batched_tokens: int = STEP_LIMITS.tokens, kv_cache_tokens: int = 1 << 20, preemption: str = "recompute",
        prediction: str = "none", steps_ahead: int = 1, make_scheduler: type[Scheduler] = Scheduler, make_queues: type[Queues] = Queues,
        clock: VirtualClock | None = None,
    ):  # fmt: skip
        self.clock = clock or VirtualClock()
        self.runner = SimulatedRunner(costs, self.clock, steps_ahead)
        memory = KVCacheManager(PagedPolicy(max(1, kv_cache_tokens // BLOCK_SIZE), BLOCK_SIZE), LENGTH_PREDICTIONS[prediction]())
        policy = POLICIES[policy]() if isinstance(policy, str) else policy
        self.scheduler = make_scheduler(policy, make_queues(memory, Preemption(preemption), max_num_seqs), max_num_batched_tokens)
        self.core = EngineCore(self.scheduler, self.runner, tokenizer=None)
        self.sequences: dict[str, Sequence] = {}  # unfinished sequences by request id

    def add_request(self, request_id: str, prompt: list[int], sampling_params: SamplingParams) -> None:
        """Queue a request that generates max_tokens tokens."""
        sequence = Sequence(request_id, None, prompt, sampling_params, sampling_params.max_tokens, frozenset(), NoText())
        self.core.add(sequence)
        self.sequences[request_id] = sequence

    def abort_request(self, request_id: str) -> None:
        """End a request; its memory is free from the next step on."""
        if request_id in self.sequences:
            self.core.abort([self.sequences.pop(request_id)])

    def advance(self) -> list[Sequence]:
        """Simulate one step; returns the sequences that got a token or ended."""
        moved = self.core.step()
        for sequence in moved:
            if sequence.is_finished:
                self.sequences.pop(sequence.request_id, None)
        return moved

    def has_unfinished_requests(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self.sequences)

    def set_scheduling_policy(self, name: str) -> None:
        """The same as in LLMEngine."""
        self.scheduler.policy = POLICIES[name]()

    def stats(self) -> EngineStats:
        """Queue lengths, KV cache usage and counters."""
        return engine_stats(self.scheduler, self.core.num_steps)


def simulate(
    costs: StepCosts, requests: Many[BenchRequest], policy: str | SchedulingPolicy = "split_fuse", **options
) -> tuple[ServedRun, list[TimedStep]]:
    """Serve requests, sorted by arrival, on a simulated engine with these options; returns (what clients observed, every step)."""
    engine = SimulatedEngine(costs, policy, **options)
    return serve(engine, requests, clock=engine.clock), engine.runner.steps
