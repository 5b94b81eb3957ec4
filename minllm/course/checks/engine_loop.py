"""The ladder for the engine's loop: which steps are launched before the results of earlier ones are read."""

from collections.abc import Callable

from minllm.course.checks.evidence import note
from minllm.course.checks.logging_engine import LaunchError, LoggingEngine, ReferenceLoop
from minllm.course.checks.mismatch import Mismatch
from minllm.course.exercise import Exercise, Rung
from minllm.course.host_and_gpu import HostAndGpu, StepTimes, TimedRunner, TimedScheduler

CALLS = 20  # limit for calls of EngineCore.step, for a loop that makes no progress
BUBBLE = "the GPU had nothing to do while the host read results"


def looped(core_class: Callable, engine: LoggingEngine) -> tuple[object, list[str]]:
    """(the core, all sequences that its steps returned) after a loop over an engine."""
    core, moved = core_class(engine, engine, None), []
    for _ in range(CALLS):
        if not core.has_work:
            break
        try:
            moved += core.step() or []
        except LaunchError as error:
            raise Mismatch(
                f"step() raised {error!r}.\nLikely cause: a step that cannot be launched must not end the others: catch whatever "
                "execute raises, and give it to self.scheduler.fail(step, error)."
            ) from None
    return core, moved


def in_order(core_class: Callable, steps: int, ahead: int, blocked: int = 0) -> None:
    """Run a loop, and compare its order of launches and reads with that of ReferenceLoop."""
    engine = LoggingEngine(steps, ahead, blocked)
    looped(core_class, engine)
    right = LoggingEngine(steps, ahead, blocked)
    looped(ReferenceLoop, right)
    note("events", engine.log)
    if engine.log == right.log:
        return
    told = f"with steps_ahead={ahead} the loop did: {spoken(engine.log)}; expected: {spoken(right.log)}"
    raise Mismatch(f"{told}\nLikely cause: {cause(engine, ahead)}")


def cause(engine: LoggingEngine, ahead: int) -> str:
    """The mistake that explains a wrong order."""
    launched, read = engine.numbers("launch"), engine.numbers("read")
    first_read = engine.log.index(("read", read[0])) if read else len(engine.log)
    before = sum(verb == "launch" for verb, _ in engine.log[:first_read])
    if not launched:
        return f"nothing was launched: while no more than steps_ahead={ahead} launched steps are unread, one more may be launched."
    if set(engine.numbers("plan")) - set(launched):
        return "a step was planned and never launched, so its sequences wait for ever: ask whether there is room before you plan."
    if len(read) > len(set(read)):
        return "results were waited for where the step was launched: only step() waits, for the oldest."
    if read != sorted(read):
        return "results are read oldest first: step() takes them from the left, so append on the right."
    if before > ahead + 1:
        return f"{before} steps were launched before the first was read, and {ahead + 1} may be: a sequence that ends is noticed too late."
    return f"{BUBBLE}: launch until steps_ahead + 1 steps are unread, not one per call."


def spoken(log: list[tuple[str, int]]) -> str:
    """The first events of a log as text."""
    return ", ".join(f"{verb} {number}" for verb, number in log[:10]) + (", ..." if len(log) > 10 else "") if log else "nothing"


def counted(core_class: Callable) -> None:
    """Check `num_steps` after five steps."""
    core, _ = looped(core_class, LoggingEngine(5, 1))
    note("num_steps", core.num_steps)
    if core.num_steps != 5:
        raise Mismatch(f"num_steps is {core.num_steps} after 5 steps\nLikely cause: add 1 to self.num_steps for every planned step.")


def one_fails(core_class: Callable) -> None:
    """Check a loop in which the second of four steps cannot be launched."""
    engine = LoggingEngine(4, 1, broken=2)
    _, moved = looped(core_class, engine)
    note("events", engine.log)
    if engine.numbers("fail") != [2]:
        raise Mismatch(
            f"the scheduler was told that these steps failed: {engine.numbers('fail')}; expected [2]\nLikely cause: "
            "self.scheduler.fail(step, error) was not called, and the sequences of the step wait for ever."
        )
    if engine.numbers("read") != [1, 3, 4]:
        raise Mismatch(f"steps {engine.numbers('read')} were read; expected 1, 3 and 4\nLikely cause: the loop ended with the failed step.")
    if "sequence of step 2" not in moved:
        raise Mismatch(
            f"step() returned {moved}, without the sequence of step 2\nLikely cause: the sequences that fail() returns have to be "
            "returned, or nobody learns that they ended."
        )


def without_bubbles(core_class: Callable) -> str:
    """Check that the GPU is never idle, on a simulated clock on which the host needs less time than the GPU."""
    machine, engine = HostAndGpu(), LoggingEngine(6, 1)
    times = StepTimes(gpu=lambda step: 880, take=300)
    core = core_class(TimedScheduler(engine, machine, times), TimedRunner(engine, machine, times, 1), None)
    while core.has_work:
        core.step()
    note("bubbles", len(machine.bubbles()))
    if bubbles := machine.bubbles():
        name, gap = bubbles[0]
        raise Mismatch(f"the GPU was idle for {gap:.0f} µs before {name}\nLikely cause: {BUBBLE}.")
    return f"the GPU computed {100 * machine.gpu_share:.0f} % of the time"


def generates(core_class: Callable) -> str:
    """Check that the bundled model, planned one step ahead, generates the same tokens as without."""
    from minllm.engine.llm import LLM
    from minllm.engine.requests.sampling_params import SamplingParams

    prompts = ["def add(a, b):\n    return", "class Stack:\n    def push(self", "import os\n"]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (3, 12, 6)]
    with LLM(device="cpu", dtype="float32", max_num_seqs=2, max_model_len=64) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        core, machine, times = llm.llm_engine.core, HostAndGpu(), StepTimes(gpu=lambda step: 880)
        scheduler, runner = TimedScheduler(core.scheduler, machine, times), TimedRunner(core.runner, machine, times, steps_ahead=1)
        llm.llm_engine.core = core_class(scheduler, runner, llm.tokenizer)
        outputs = [output.outputs[0] for output in llm.generate(prompts, params)]
    note("tokens", [list(output.token_ids) for output in outputs])
    if [output.token_ids for output in outputs] != expected:
        raise Mismatch(
            f"the tokens are {[output.token_ids for output in outputs]}; step by step they are {expected}\nLikely cause: results are not "
            "read oldest first."
        )
    if bubbles := machine.bubbles():
        raise Mismatch(f"the GPU was idle {len(bubbles)} times, first before {bubbles[0][0]}\nLikely cause: {BUBBLE}.")
    return f"your loop generated {outputs[1].text!r}"


EXERCISES = (
    Exercise(
        name="engine.launch_ahead",
        lesson=17,
        title="the engine's loop: keep the GPU busy while the host reads",
        module="minllm.engine.core",
        entry="EngineCore",
        task="Plan and launch steps until one more is launched than may be unread, self.runner.steps_ahead, or until "
        "self.scheduler.schedule() returns None. Append (step, self.runner.execute(step)) to self._launched for each, and add 1 to "
        "self.num_steps. If execute raises, give the step and the error to self.scheduler.fail, and go on. Return the sequences that "
        "fail returned.",
        hints=(
            "execute returns before the GPU has begun. Nothing here may wait: step() below waits for the oldest step, once this "
            "function has filled the queue.",
            "A planned step must be launched, so ask whether there is room in the queue before you ask the scheduler.",
            "while len(self._launched) <= self.runner.steps_ahead and (step := self.scheduler.schedule()) is not None:",
        ),
        rungs=(
            Rung("no step ahead", "a CPU computes a step where it is launched: steps_ahead is 0.", lambda c: in_order(c, 3, 0)),
            Rung("one step ahead", "step 2 is launched before step 1 is read.", lambda c: in_order(c, 5, 1)),
            Rung("three steps ahead", "the queue has the length that the machine wants.", lambda c: in_order(c, 7, 3)),
            Rung("a step that needs results", "where nothing can be planned, the loop reads on.", lambda c: in_order(c, 5, 2, blocked=3)),
            Rung("the number of steps", "statistics count what was launched.", counted),
            Rung("a step that cannot be launched", "its sequences end, and the others go on.", one_fails),
            Rung("no bubbles", "on a clock: the GPU goes from step to step.", without_bubbles),
            Rung("your loop in the engine", "the bundled model, one step ahead: the same tokens.", generates),
        ),
    ),
)
