"""The engine's side of a server: requests come and are cancelled. After a busy day the cache is full, although few requests run."""

from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import SimulatedEngine
from minllm.costs.serving import StepCosts
from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.models.shapes import named_config


class OpenRequests:
    """What is known of the requests that clients wait for. A prompt is tokenised in another thread, and then `tokenised` is called."""

    def __init__(self, engine):
        self.engine, self.running = engine, set()

    def tokenised(self, name, token_ids):
        """A request's prompt is ready: the engine takes it."""
        self.running.add(name)
        self.engine.add_request(name, token_ids, greedy(400))

    def cancel(self, name):
        """The client has left."""
        if name in self.running:
            self.running.discard(name)
            self.engine.abort_request(name)


class OpenRequestsOfAllStates:
    """The same, for requests in any state."""

    def __init__(self, engine):
        self.engine, self.running, self.left = engine, set(), set()

    def tokenised(self, name, token_ids):
        """A request's prompt is ready: the engine takes it, if somebody still wants it."""
        if name in self.left:
            self.left.discard(name)
            return
        self.running.add(name)
        self.engine.add_request(name, token_ids, greedy(400))

    def cancel(self, name):
        """The client has left."""
        if name not in self.running:
            self.left.add(name)
            return
        self.running.discard(name)
        self.engine.abort_request(name)


def examine(make_requests):
    """A client leaves while its request runs; another leaves while its prompt is tokenised."""
    engine = SimulatedEngine(StepCosts.of(named_config("llama-3.2-1b"), 4.273, 818.6), steps_ahead=0)
    requests = make_requests(engine)
    for name, leaves in (("a", "while it runs"), ("b", "while its prompt is tokenised")):
        if leaves == "while it runs":
            requests.tokenised(name, [1] * 200)
            engine.advance()
            requests.cancel(name)
        else:
            requests.cancel(name)
            requests.tokenised(name, [1] * 200)
        engine.advance()
        held = round(engine.stats().kv_cache_usage * engine.scheduler.memory.policy.num_blocks)
        if held:
            raise Mismatch(f"the client of request {name} left {leaves}; it still runs, holds {held} blocks, and nobody reads its answer")


CASE = Case(
    name="rooms_without_guests",
    lesson=22,
    title="The rooms are taken, the house is empty",
    story="At noon the cache is full and new requests wait, yet the server counts eleven open connections. The engine's list of sequences "
    "has sixty. All sixty end in time, at their max_tokens, with perfect texts. It is worst when the network is slow and the users are "
    "impatient, and worse for long prompts than for short ones. In your test a client that leaves frees its blocks within one step.",
    hint="In your test the client leaves after its first token. Between a request's arrival and its first token it is in several places; "
    "follow one that is cancelled in each.",
    broken=OpenRequests,
    mended=OpenRequestsOfAllStates,
    examine=examine,
    guilty="if name in self.running:",
    solution="A request is known as running only once its prompt is tokenised, which takes the longer, the longer the prompt. A "
    "cancellation that arrives before finds nothing to cancel and is forgotten; then the request begins, without a reader, and holds its "
    "blocks until max_tokens. `cancel` must leave a trace for every state that a request can be in. The package registers a request "
    "when it arrives: first the task that brings it to the engine, then its stream, and either one can be cancelled.",
)
