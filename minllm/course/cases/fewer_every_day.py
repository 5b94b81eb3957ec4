"""Queues that end requests whose clients have gone; after some days it serves fewer and fewer."""

from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import SimulatedEngine
from minllm.costs.serving import StepCosts
from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.engine.requests.sequence import NO_SLOT
from minllm.engine.scheduling.queues import Queues
from minllm.models.shapes import named_config


class EndingRequests(Queues):
    """The package's queues, with another way to end a sequence that has finished or was aborted."""

    def leave(self, sequence):
        """Free all that a sequence holds that has ended. A sequence that waits holds nothing."""
        self._num_unfinished -= 1
        if sequence.slot != NO_SLOT:
            if sequence.is_prefilled:
                self.memory.free(sequence)
            self._give_up_slot(sequence)


class EndingAllRequests(Queues):
    """The same, but a sequence that has a slot has blocks, however far its prompt is computed."""

    def leave(self, sequence):
        """Free all that a sequence holds that has ended. A sequence that waits holds nothing."""
        self._num_unfinished -= 1
        if sequence.slot != NO_SLOT:
            self.memory.free(sequence)
            self._give_up_slot(sequence)


def examine(make_queues):
    """Requests end by themselves, and are aborted while they wait, while their prompts are computed, and while they decode."""
    costs = StepCosts.of(named_config("llama-3.2-1b"), 4.273, 818.6)
    engine = SimulatedEngine(costs, max_num_batched_tokens=64, max_num_seqs=2, make_queues=make_queues, steps_ahead=0)
    for name, prompt, tokens, aborted_after in (("a", 20, 3, None), ("b", 20, 9, 4), ("c", 300, 3, 2), ("d", 20, 3, 0)):
        engine.add_request(name, [1] * prompt, greedy(tokens))
        for step in range(12):
            if step == aborted_after:
                engine.abort_request(name)
            engine.advance()
        held = round(engine.stats().kv_cache_usage * engine.scheduler.memory.policy.num_blocks)
        if held:
            when = "ended" if aborted_after is None else f"was aborted after {aborted_after} steps"
            raise Mismatch(f"request {name} of {prompt} tokens {when}, nobody runs, and {held} blocks are held")


CASE = Case(
    name="fewer_every_day",
    lesson=16,
    title="Fewer every day",
    story="After a restart the server runs 200 requests at a time. A week later it is 120, with the same traffic, and the cache is said to "
    "be full. No request fails and no text is wrong. It is worst on the server whose users send whole documents and often change "
    "their minds; on a test bench, where every request is answered to its end, the number stays at 200 for ever.",
    hint="What does a request hold, and from when on? Follow one whose client hangs up, at each point of its life.",
    broken=EndingRequests,
    mended=EndingAllRequests,
    examine=examine,
    guilty="if sequence.is_prefilled:",
    solution="Blocks are reserved for the whole prompt when a sequence enters, not when its prompt is computed. With prompts in chunks "
    "there are steps in between, many for a document; a client that hangs up in one of them leaves the prompt's blocks without an "
    "owner. The slot is given back, so nothing looks wrong until such blocks fill the cache. The code that takes a resource and the code "
    "that gives it back must ask the same question, here: does the sequence have a slot? The package's tests count after every random "
    "run that all slots and blocks are back.",
)
