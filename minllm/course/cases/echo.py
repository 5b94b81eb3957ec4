"""A runner that plans one step ahead and takes each sequence's newest token from the host."""

from minllm.bench.serving.run import greedy
from minllm.bench.serving.simulated import PendingStep, SimulatedEngine, SimulatedRunner
from minllm.costs.serving import StepCosts
from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.models.shapes import named_config


def next_token(token):
    """The model: it counts."""
    return token + 1


class CountingRunner(SimulatedRunner):
    """Computes the next token of each sequence from its newest one."""

    def newest(self, sequence):
        """The token that this step computes: the last one of the sequence."""
        return (sequence.prompt_token_ids + sequence.output_token_ids)[-1]

    def execute(self, step):
        """Launch a step; its tokens come when somebody waits for them."""
        [pending] = super().execute(step)
        sampled = [next_token(self.newest(sequence)) for sequence in step.sampled]
        self.note(step.sampled, sampled)
        return [Counted(pending, sampled)]

    def note(self, sequences, tokens):
        """Nothing to note."""


class CountingInSlots(CountingRunner):
    """The same, but the newest token of a sequence lies in its slot on the device, where the step that sampled it has left it."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.slots = {}

    def newest(self, sequence):
        """The token that this step computes: what the last launched step has sampled, whether the host knows it or not."""
        return self.slots.get(sequence.slot) if sequence.num_in_flight > 1 else super().newest(sequence)

    def note(self, sequences, tokens):
        """Leave each token in its sequence's slot."""
        self.slots.update(zip((sequence.slot for sequence in sequences), tokens, strict=True))


class Counted(PendingStep):
    """Results on their way to the host."""

    def __init__(self, pending, token_ids):
        super().__init__(pending.clock, pending.end, pending.sampled)
        self.token_ids = token_ids

    def wait(self):
        """Wait for them."""
        return super().wait()._replace(token_ids=self.token_ids)


def examine(make_runner):
    """Two requests, on a machine that plans no step ahead, and on one that plans one ahead, as for a GPU."""
    costs = StepCosts.of(named_config("llama-3.2-1b"), 4.273, 818.6)
    said = []
    for steps_ahead in (0, 1):
        engine = SimulatedEngine(costs, steps_ahead=steps_ahead)
        engine.core.runner = make_runner(costs, engine.clock, steps_ahead)
        for name, first in (("a", 10), ("b", 50)):
            engine.add_request(name, [first], greedy(6))
        sequences = dict(engine.sequences)
        while engine.core.has_work:
            engine.advance()
        for name, first in (("a", 11), ("b", 51)):
            found, expected = sequences[name].output_token_ids, [*range(first, first + 6)]
            verdict = "right" if found == expected else f"expected {expected}, got {found}"
            said.append(f"{steps_ahead} steps ahead, request {name}: {verdict}")
    if any("got" in line for line in said):
        raise Mismatch("\n".join(said))


CASE = Case(
    name="echo",
    lesson=16,
    title="It says says everything everything twice twice",
    story="On the CPU the engine writes good English. On the GPU, with the same weights, every word comes twice, and the text makes no "
    "sense. The kernels pass all tests against their references. With a synchronisation after every step, to find the "
    "culprit, the text is right again.",
    hint="When a step is launched, how many tokens of a sequence does the host know, and how many has the GPU sampled?",
    broken=CountingRunner,
    mended=CountingInSlots,
    examine=examine,
    guilty="return (sequence.prompt_token_ids + sequence.output_token_ids)[-1]",
    solution="The host plans step n + 1 while step n is computed, so the token that step n samples is not in `output_token_ids` yet: the "
    "newest one that the host knows is a step older. Each token is computed twice, and each step answers the question of the one "
    "before. Where the host waits for every step, on a CPU or with a debugger's synchronisation, both are the same. Either the host waits, "
    "and the GPU with it, or the token stays where it was sampled: in the sequence's slot on the device, from which the next step reads "
    "it. That is why the engine keeps lengths and newest tokens there.",
)
