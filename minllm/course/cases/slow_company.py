"""A loop that launches one step ahead. The GPU is idle between steps since one client asks for log-probabilities."""

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.course.host_and_gpu import HOST, READ_COLOUR, HostAndGpu

STEP_US, PLAN_US, TEXT_US = 900, 100, 300


class Memory:
    """Host memory; the GPU can copy to it by itself only if it is page-locked."""

    def __init__(self, page_locked: bool):
        self.page_locked = page_locked


class CopyingMachine(HostAndGpu):
    """A host and a GPU that copies results to host memory in stream order."""

    def read_later(self, name: str, memory: Memory) -> float:
        """Start a copy of results; returns when it will be done. A copy to pageable memory returns only once it is complete."""
        if not memory.page_locked:
            self.wait(self.gpu_ends, f"copy {name}")
        return self.gpu_ends


def start_reading(machine, wants_logprobs):
    """Start to copy a step's results to the host; returns when they will be there."""
    done = machine.read_later("tokens", Memory(page_locked=True))
    if wants_logprobs:
        done = machine.read_later("logprobs", Memory(page_locked=False))
    return done


def mended_start_reading(machine, wants_logprobs):
    """The same, into page-locked memory, whatever is copied."""
    done = machine.read_later("tokens", Memory(page_locked=True))
    if wants_logprobs:
        done = machine.read_later("logprobs", Memory(page_locked=True))
    return done


def run_loop(start_reading, wants_logprobs):
    """Six steps, each launched before the results of the one before it are read. This loop is right."""
    machine, unread = CopyingMachine(), None
    for number in range(1, 7):
        machine.work("plan", PLAN_US)
        machine.launch(f"step {number}", STEP_US)
        done = start_reading(machine, wants_logprobs)
        if unread is not None:
            machine.wait(unread, "read")
            machine.work("text", TEXT_US, READ_COLOUR)
        unread = done
    return machine


def examine(start_reading):
    """Without log-probabilities and with them."""
    for wants_logprobs in (False, True):
        machine = run_loop(start_reading, wants_logprobs)
        if machine.bubbles():
            raise Mismatch(f"with wants_logprobs={wants_logprobs} the GPU is idle between steps\n{lines_of(machine, 3)}")


def lines_of(machine: HostAndGpu, steps: int) -> str:
    """The timeline as text, until the end of a number of steps."""
    last = [span for span in machine.spans if span.lane != HOST][steps - 1].end
    spans = sorted((span for span in machine.spans if span.start < last), key=lambda span: (span.start, span.lane))
    return "\n".join(f"{span.start:6.0f} to {span.end:5.0f} µs  {span.lane:4}  {span.name}" for span in spans)


CASE = Case(
    name="slow_company",
    lesson=17,
    title="Everybody waits since one of them asks for more",
    story="The engine launches every step before it reads the results of the one before, and the GPU has been busy for 99 % of the time "
    "ever since. This morning every user's tokens come 44 % later. The batch is as large as yesterday, the kernels take as long as "
    "yesterday, and the profiler shows gaps of 400 µs between steps. The only news in the log: one client of two hundred asks for "
    "log-probabilities. When that request ends, all is well again.",
    hint="Draw what the host does between two launches, with and without log-probabilities. Which call is long, and what does it wait for?",
    broken=start_reading,
    mended=mended_start_reading,
    examine=examine,
    guilty='done = machine.read_later("logprobs", Memory(page_locked=False))',
    solution="A copy from the GPU to pageable memory is asynchronous in name only: the call returns once the copy is complete, and the "
    "copy waits for the step before it. So the host stands still until the step it has just launched has ended, and plans the next "
    "one while the GPU has nothing to do: the gap is the host's work, 300 µs of text and 100 µs of planning. The tokens went to "
    "page-locked memory and were never the trouble; the log-probabilities, added later, went to an ordinary array. One request is "
    "enough, because all share the step. In the engine all results of a step come through `Readback`, which takes page-locked memory "
    "from a pool.",
)
