"""The Tracer counts what a simulated kernel does: `kernel.trace`, `sim.trace`.

    trace = my_kernel.trace[grid, block](*numpy_arrays)        # or: minllm.sim.trace(my_kernel, grid, block, *numpy_arrays)
    print(trace)                                                # tables
    trace.arrays["x"].read.sectors_per_request, trace.bank_conflicts, trace.arithmetic_intensity
    trace.access_map("x").save("x.svg")

    with minllm.sim.tracing() as traces:                        # traces all launches in the simulator, here of a launcher
        rms_norm(x, weight, out, 1e-5)

The lanes of one warp instruction make one request. The simulator runs lanes one after the other, so the tracer groups their accesses
afterwards: one request consists of each lane's n-th execution of the same instruction, reached by the same calls. If a branch in a loop
skips an instruction in different iterations for different lanes, accesses are merged that the hardware makes one after the other.

Arrays are assumed to begin on a sector boundary, as device memory does. Local arrays are registers and constant arrays have a cache of
their own; neither is counted.
"""

import contextlib
from collections import defaultdict

from minllm.sim import simulator
from minllm.sim.float_operations import CountedArray, count_in, counted, operations
from minllm.sim.place import file_and_function, is_own
from minllm.sim.rewrite import plain_function
from minllm.sim.trace_counts import Counts
from minllm.sim.trace_timeline import Timeline

STORES = ("cp_async", "st_async")  # asynchronous events that write shared memory as instructions of a warp


def trace(kernel, grid, block, *arguments, shared_bytes=0, monitors=(), **options):
    """The Trace of a simulated launch; the arguments are those of `simulate`."""
    tracer = Tracer()
    simulator.simulate(kernel, grid, block, *arguments, shared_bytes=shared_bytes, monitors=[tracer, *monitors], **options)
    return tracer.trace


@contextlib.contextmanager
def tracing():
    """Trace every simulated launch in this context; yields the list of their Traces."""
    traces = []

    def monitor():
        return Tracer(when_done=traces.append)

    simulator.standing_monitors.append(monitor)
    try:
        yield traces
    finally:
        simulator.standing_monitors.remove(monitor)


def shared_name(block, address):
    """The name of the shared array that holds an address, or ""."""
    for array in block.shared_arrays.values():
        if array.base <= address < array.base + array.data.nbytes:
            return array.name
    return ""


class Tracer(Timeline):
    """A Monitor that builds a Trace; `when_done` is called with it after the last block."""

    array_class, scalar_argument = CountedArray, staticmethod(counted)
    spaces = ("global", "shared")

    def __init__(self, when_done=None):
        super().__init__()
        self.trace, self.when_done = None, when_done
        self.requests = defaultdict(lambda: defaultdict(list))  # block -> request key -> [(lane, start, width)]
        self.executions = defaultdict(lambda: defaultdict(int))  # block -> how often each (thread, instruction) was executed
        self.firsts = defaultdict(dict)  # block -> {example key: (first thread that made such an access, time, request key)}
        self.time = 0  # accesses so far
        self.codes = {}  # id -> (code object, the positions of its instructions, or None for the simulator's own code)
        self.chains = {}  # (code id, offset) of all frames, the simulator's too -> number of the instruction
        self.instructions = {}  # (code id, position) of all frames of a kernel -> number of the instruction
        self.places = []  # for each instruction number: (file name and function, line)

    def start(self, launch):
        operations.clear()
        count_in(launch.function, set())
        self.counts = Counts(plain_function(launch.kernel).__name__, launch.grid, launch.block, launch.shared_bytes)
        for argument, array in launch.arrays.items():
            self.counts.add_array(argument, array.data.nbytes, array.span)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        space = array.space
        if space != "shared" or not self.uses(thread, array, start_byte, byte_count, kind):  # a copy was counted when it started
            self.note(thread, space, array.name, start_byte, byte_count, kind, frame)

    def note(self, thread, space, name, start_byte, byte_count, kind, frame):
        """Add one lane's access to its request."""
        if space == "shared" and not name:
            name = shared_name(thread.block, start_byte)
        block, instruction = thread.block, self.instruction(frame)
        executions, who = self.executions[block], (thread.number, instruction, kind)
        count = executions[who]
        executions[who] = count + 1
        key = thread.warp.number, instruction, count, space, name, kind
        self.requests[block][key].append((thread.lane, start_byte, byte_count))
        self.time += 1
        first = self.firsts[block].get((space, name, kind, instruction))
        if first is None or thread.number < first[0]:
            self.firsts[block][space, name, kind, instruction] = thread.number, self.time, key

    def instruction(self, frame):
        """A number for a frame's instruction and the calls that led there, which count because device functions are inlined."""
        chain, outer = [], frame
        while outer is not None:
            chain += id(outer.f_code), outer.f_lasti
            outer = outer.f_back
        chain = tuple(chain)
        number = self.chains.get(chain)
        if number is None:
            number = self.chains[chain] = self.new_instruction(frame)
        return number

    def new_instruction(self, frame):
        """The number of an instruction that is reached by other calls than before, some of which may be the simulator's own.

        It is known by its position in the source: Python compiles some expressions twice, such as the condition of a while loop.
        """
        chain, innermost = [], frame
        while frame is not None:
            known = id(frame.f_code)
            if known not in self.codes:
                self.codes[known] = frame.f_code, None if is_own(frame.f_code.co_filename) else list(frame.f_code.co_positions())
            positions = self.codes[known][1]
            if positions is not None:
                chain.append(known)
                chain.append(positions[frame.f_lasti // 2])
            frame = frame.f_back
        number = self.instructions.setdefault(tuple(chain), len(self.places))
        if number == len(self.places):
            self.places.append((file_and_function(innermost.f_code), innermost.f_lineno))
        return number

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        super().asynchronous(thread, event, array, start_byte, byte_count, frame)
        if event in STORES:
            self.note(thread, "shared", "", start_byte, byte_count, "write", frame)

    def barrier(self, block, threads):
        self.counts.trace.barriers += 1

    def collective(self, warp, kind, lanes, mask, frame):
        self.counts.collectives[kind] += 1

    def flops(self, thread, count, kind):
        self.counts.flops[kind] += count
        super().flops(thread, count, kind)

    def end_block(self, block):
        """Turn the block's accesses into counts."""
        self.executions.pop(block, None)
        requests, firsts = self.requests.pop(block, {}), self.firsts.pop(block, {})
        for key, (_, _, request) in sorted(firsts.items(), key=lambda item: item[1][:2]):
            self.counts.example(key, *self.places[key[3]], requests[request])
        for (warp, instruction, _, space, name, kind), request in requests.items():
            self.counts.request(*self.places[instruction], space, name, kind, request, len(block.warps[warp].threads))

    def end(self):
        self.counts.flops.update(operations)
        self.counts.finish()
        self.add_to(self.counts.trace)
        self.traced(self.counts.trace)

    def traced(self, trace):
        self.trace = trace
        if self.when_done is not None:
            self.when_done(trace)
