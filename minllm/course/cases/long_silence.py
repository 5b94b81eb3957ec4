"""Queues that send preempted sequences to the end of the queue, as seems fair; one answer never ends."""

from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import SimulatedEngine
from minllm.costs.serving import StepCosts
from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.engine.scheduling.queues import Queues
from minllm.models.shapes import named_config


class QueueingAgain(Queues):
    """The package's queues, in order of arrival, with another way to preempt."""

    def preempt(self, sequence):
        """Take a running sequence's memory and slot, and let it wait again."""
        self.num_preemptions += 1
        self.preemption.evict(sequence, self.memory)
        self._give_up_slot(sequence)
        self._arrivals += 1
        sequence.arrival = self._arrivals  # it has had its turn; others have waited longer
        self._push(sequence)


class KeepingItsPlace(Queues):
    """The same, but a preempted sequence keeps its arrival, and so its place before all that came later."""

    def preempt(self, sequence):
        """Take a running sequence's memory and slot, and let it wait again."""
        self.num_preemptions += 1
        self.preemption.evict(sequence, self.memory)
        self._give_up_slot(sequence)
        self._push(sequence)


STEPS, EVERY = 400, 6  # steps of the examination, and between two arrivals


def examine(make_queues):
    """A cache of 20 blocks; requests of 60 tokens that want 60 more keep coming. The fourth of them is watched."""
    costs = StepCosts.of(named_config("llama-3.2-1b"), 4.273, 818.6)
    engine = SimulatedEngine(costs, kv_cache_tokens=320, make_queues=make_queues, steps_ahead=0)
    sequences = {}
    for step in range(STEPS):
        if step % EVERY == 0:
            name = str(step // EVERY)
            engine.add_request(name, [1] * 60, greedy(60))
            sequences[name] = engine.sequences[name]
        engine.advance()
    for name, sequence in sequences.items():
        later = sum(other.is_finished for other in list(sequences.values())[int(name) + 1 :])
        if not sequence.is_finished and later > 3:
            raise Mismatch(
                f"request {name} has {len(sequence.output_token_ids)} of 60 tokens after {STEPS} steps and was preempted "
                f"{sequence.num_preemptions} times; {later} requests that arrived after it have ended"
            )


CASE = Case(
    name="long_silence",
    lesson=12,
    title="The answer that stops in the middle",
    story="When the service is busy, some answers begin at once and then fall silent, some for minutes. They are never lost: at night, "
    "when the load drops, each of them ends, and its text is right. Requests that arrived later were answered long before. The "
    "metrics show many preemptions, of few requests.",
    hint="Who is preempted if memory runs out? Who will be next, once this one runs again?",
    broken=QueueingAgain,
    mended=KeepingItsPlace,
    examine=examine,
    guilty="sequence.arrival = self._arrivals",
    solution="The sequence that arrived last is the one that is preempted. With a new arrival number a preempted sequence counts as the "
    "newest: it waits behind all others, and when it runs again, it is the first that loses its memory, after a step or two of work "
    "that was recomputed at the price of its whole context. As long as requests keep coming, it starves. If it keeps its number, it "
    "becomes older than everybody else some day, and the oldest is never preempted: everyone's wait is bounded. A queue in order of "
    "arrival is fair only if a place in it cannot be lost.",
)
