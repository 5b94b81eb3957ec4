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
import os
from collections import Counter, defaultdict

import numpy as np

from minllm.sim import simulator
from minllm.sim.float_operations import CountedArray, count_in, operations
from minllm.sim.monitor import Monitor
from minllm.sim.place import file_of, instruction_starts, is_own
from minllm.sim.trace_numbers import ArrayTraffic, PartialLine, Request, SharedLine, Trace
from minllm.sim.trace_pipeline import Pipeline
from minllm.sim.trace_stages import Stages
from minllm.sim.traffic import WIDEST, LaneAccess, sectors, turns
from minllm.sim.transfer import CHUNK


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


class Tracer(Monitor):
    """A Monitor that builds a Trace; `when_done` is called with it after the last block."""

    array_class = CountedArray
    spaces = ("global", "shared")

    def __init__(self, when_done=None):
        self.trace, self.when_done = None, when_done
        self.requests = defaultdict(lambda: defaultdict(list))  # block -> request key -> [(lane, start, width)]
        self.executions = defaultdict(lambda: defaultdict(int))  # block -> how often each (thread, instruction) was executed
        self.codes = {}  # id -> (code object, its instruction_starts, or None for the simulator's own code)
        self.chains = {}  # (code id, offset) of all frames, the simulator's too -> number of the instruction
        self.instructions = {}  # (code id, offset) of all frames of a kernel -> number of the instruction
        self.places = []  # for each instruction number: (file name and function, line)
        self.masks = {}  # (array name, kind) -> bool per byte: whether it was accessed
        self.shared_lines, self.partial_lines, self.examples = {}, {}, {}
        self.flops_by_kind, self.collectives = Counter(), Counter()
        self.pipeline, self.stages = Pipeline(), Stages()

    def start(self, launch):
        operations.clear()
        count_in(launch.function, set())
        name = getattr(launch.kernel, "__name__", launch.function.__name__)
        self.trace = Trace(name, launch.grid, launch.block, launch.shared_bytes)
        for argument, array in launch.arrays.items():
            self.trace.arrays[argument] = ArrayTraffic(argument, array.data.nbytes)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        space = array.space
        if space == "shared" and kind == "write" and self.pipeline.arrival(array, start_byte):
            return  # the write was counted when the copy started
        if space == "shared" and kind == "read" and self.stages.block is thread.block:
            self.stages.used(thread.block, slice(start_byte // CHUNK, -(-(start_byte + byte_count) // CHUNK)))
        self.note(thread, space, array.name, start_byte, byte_count, kind, frame)

    def note(self, thread, space, name, start_byte, byte_count, kind, frame):
        """Add one lane's access to its request."""
        if space == "shared" and not name:
            name = shared_name(thread.block, start_byte)
        instruction = self.instruction(frame)
        executions, who = self.executions[thread.block], (thread.number, instruction, kind)
        count = executions[who]
        executions[who] = count + 1
        key = thread.warp.number, instruction, count, space, name, kind
        self.requests[thread.block][key].append((thread.lane, start_byte, byte_count))

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
        """The number of an instruction that is reached by other calls than before, some of which may be the simulator's own."""
        chain, innermost = [], frame
        while frame is not None:
            known = id(frame.f_code)
            if known not in self.codes:
                self.codes[known] = frame.f_code, None if is_own(frame.f_code.co_filename) else instruction_starts(frame.f_code)
            starts = self.codes[known][1]
            if starts is not None:
                chain.append(known)
                chain.append(starts[frame.f_lasti // 2])
            frame = frame.f_back
        number = self.instructions.setdefault(tuple(chain), len(self.places))
        if number == len(self.places):
            code = innermost.f_code
            self.places.append((f"{os.path.basename(file_of(code))}, {code.co_name}", innermost.f_lineno))
        return number

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        self.pipeline.event(thread, event, array, start_byte, byte_count, frame)
        if event == "cp_async":
            self.note(thread, "shared", "", start_byte, byte_count, "write", frame)

    def transfer_starts(self, transfer):
        if transfer.kind == "read":
            self.stages.used(transfer.block, transfer.chunks)
        elif transfer.barrier is not None:
            self.stages.copy_starts(transfer)

    def transfer_ends(self, transfer, threads, thing):
        if transfer.kind == "read":
            self.stages.used(transfer.block, transfer.chunks)
        elif transfer.barrier is not None:
            self.pipeline.arrival(transfer.block.shared_root, transfer.start)
            self.stages.copy_ends(transfer)

    def barrier(self, block, threads):
        self.trace.barriers += 1

    def collective(self, warp, kind, lanes, mask, frame):
        self.collectives[kind] += 1

    def flops(self, thread, count, kind):
        self.flops_by_kind[kind] += count
        self.pipeline.flops(thread, count)

    def end_block(self, block):
        """Turn the block's accesses into counts."""
        self.executions.pop(block, None)
        for (warp, instruction, _, space, name, kind), request in self.requests.pop(block, {}).items():
            place, line = self.places[instruction]
            if (space, name, kind, instruction) not in self.examples:
                lanes = [LaneAccess(*access) for access in sorted(request)]
                self.examples[space, name, kind, instruction] = Request(place, line, space, name, kind, lanes)
            entry = self.partial_lines.setdefault((place, line), PartialLine(place, line))
            entry.requests += 1
            entry.partial += request[0][2] <= WIDEST and len(request) < len(block.warps[warp].threads)
            if space == "global":
                self.count_global(name, kind, request)
            else:
                self.count_shared(place, line, name, kind, request)

    def count_global(self, name, kind, request):
        """Add a request to its array's traffic."""
        array = self.trace.arrays[name]
        traffic = getattr(array, kind)
        traffic.requests += 1
        traffic.bytes += sum(width for _, _, width in request)
        traffic.sectors += len(sectors(request))
        if (name, kind) not in self.masks:
            self.masks[name, kind] = np.zeros(array.array_bytes, bool)
        mask = self.masks[name, kind]
        for _, start, width in request:
            mask[start : start + width] = True

    def count_shared(self, place, line, name, kind, request):
        """Add a request to its line's traffic."""
        entry = self.shared_lines.setdefault((place, line, name, kind), SharedLine(place, line, name, kind))
        busy = turns(request, kind == "atomic")
        entry.requests += 1
        entry.bytes += sum(width for _, _, width in request)
        entry.turns += sum(busy)
        entry.least += len(busy)
        entry.worst = max(entry.worst, *busy)

    def end(self):
        for (name, kind), mask in self.masks.items():
            getattr(self.trace.arrays[name], kind).unique_bytes = int(mask.sum())
        found = self.trace
        found.shared = sorted(self.shared_lines.values(), key=lambda entry: (entry.place, entry.line))
        found.partial = sorted((e for e in self.partial_lines.values() if e.partial), key=lambda entry: (entry.place, entry.line))
        found.examples = list(self.examples.values())
        found.flops, found.collectives = dict(self.flops_by_kind + operations), dict(self.collectives)
        found.pipeline, found.step_flops = self.pipeline.groups, self.pipeline.step_flops
        self.stages.finish()
        found.stages, found.moments = self.stages.rounds, self.stages.moments
        if self.when_done is not None:
            self.when_done(found)
