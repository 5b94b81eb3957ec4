"""Traces of the lanes: the counts of tracer.py, from the same vectors of addresses that memory is accessed with.

Every access is made at a site, a node of the kernel's source, which the chain of calls that led there makes an instruction. As in the
threads, a lane's n-th execution of an instruction belongs to its warp's n-th request; the requests are formed when the vector's lanes have
ended, or when there are many.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from minllm.sim.lanes.faults import NotInLanes
from minllm.sim.lanes.masks import VECTOR
from minllm.sim.monitor import Monitor, combined
from minllm.sim.thread import WARP_SIZE
from minllm.sim.trace_counts import Counts
from minllm.sim.trace_pipeline import Pipeline
from minllm.sim.traffic import WIDEST, Accesses

MOST_ACCESSES = 2_000_000  # of one vector


@dataclass(eq=False)
class Site:
    """A node of the source that calls something or accesses an array. place: its file and function."""

    place: str
    line: int


class Path:
    """A chain of calls. calls: {Site: the Path that it leads to}; instructions: {Site: number of the instruction}."""

    def __init__(self):
        self.calls, self.instructions = {}, {}

    def below(self, site):
        """The Path of a call at a site."""
        if site not in self.calls:
            self.calls[site] = Path()
        return self.calls[site]


class Log:
    """The accesses of a vector's lanes, or of a block's fibres. size: the number of lanes; count: of accesses in `entries`.

    executions: {(instruction, kind): how often each lane has executed it}; entries: {(space, name, kind, instruction): [(time, lanes,
    first bytes, widths, counts)]}; shared_names: [(first byte, one past the last, name)] of shared arrays; examples: for each key of
    entries ((lane, time) of the first access, columns of its request).
    """

    def __init__(self, size):
        self.size, self.executions, self.entries, self.count = size, {}, defaultdict(list), 0
        self.shared_names, self.examples = [], {}

    def counted(self, instruction, kind, lanes):
        """How often each of these lanes has made such an access before."""
        known = self.executions.get((instruction, kind))
        if known is None:
            known = self.executions[instruction, kind] = np.zeros(self.size, np.int64)
        found = known[lanes]
        known[lanes] = found + 1
        return found

    def columns(self, entries):
        """(times, lanes, first bytes, widths, counts) of entries, as vectors."""
        rows = [[one if type(one) is VECTOR else np.full(entry[1].size, one) for one in entry] for entry in entries]
        return [np.concatenate(column) for column in zip(*rows)]

    def note_example(self, key, who, columns):
        """Keep a request, of which the lane `who` made the first access, as the example of an instruction if no lower lane has made one."""
        if key not in self.examples or who <= self.examples[key][0]:
            self.examples[key] = who, columns

    def name_at(self, address):
        """The name of the shared array that holds an address, or ""."""
        return next((name for start, stop, name in self.shared_names if start <= address < stop), "")


class LaneTracer:
    """The counts of one launch in lanes. threads: of a block.

    steps: of the blocks or clusters of the launch, as many as the threads must run for the timeline of a pipeline, which depends on the
    order in which they run.
    """

    def __init__(self, launch, name):
        self.threads = launch.block.x * launch.block.y * launch.block.z
        self.warps = -(-self.threads // WARP_SIZE)
        self.counts = Counts(name, launch.grid, launch.block, launch.shared_bytes)
        for argument, (array, span) in launch.named.items():
            self.counts.add_array(argument, array.nbytes, span)
        self.path, self.sites, self.time = Path(), [], 0
        self.pipeline, self.staged, self.step, self.steps = Pipeline(), False, 0, 0  # staged: whether a copy completes on an mbarrier

    def instruction(self, lanes):
        """The number of the instruction that lanes execute."""
        known = lanes.path.instructions
        number = known.get(lanes.site)
        if number is None:
            number = known[lanes.site] = len(self.sites)
            self.sites.append(lanes.site)
        return number

    def access(self, lanes, chosen, space, name, start, width, kind):
        """An access of the lanes `chosen`. start: first byte in the array's memory, or the shared address; width: in bytes."""
        log, instruction = lanes.traced, self.instruction(lanes)
        start = start.astype(np.int64) if type(start) is VECTOR else np.full(chosen.size, start)  # an operand may be uint64
        count = log.counted(instruction, kind, chosen)
        if space == "shared" and not name:
            names = [log.name_at(one) for one in start.tolist()]
            for name in dict.fromkeys(names):
                part = np.array([one == name for one in names])
                self.enter(log, instruction, chosen[part], space, name, start[part], width, kind, count[part])
        else:
            self.enter(log, instruction, chosen, space, name, start, width, kind, count)

    def enter(self, log, instruction, chosen, space, name, start, width, kind, count):
        """Write an access in the log."""
        self.time += 1
        log.entries[space, name, kind, instruction].append((self.time, chosen, start, width, count))
        log.count += chosen.size
        if log.count > MOST_ACCESSES:
            self.count_requests(log)
            if log.count > MOST_ACCESSES // 2:
                raise NotInLanes("too many accesses by parts of warps to be traced")

    def flops(self, kind, count):
        """Operations of the lanes of the mask."""
        self.counts.flops[kind] += count

    def collective(self, lanes, kind, flops=0):
        """A warp-wide instruction of the warps of the mask. flops: of each warp, on tensor cores."""
        warps = lanes.warps_here
        self.counts.collectives[kind] += warps.size
        if flops:
            self.tensor_flops(lanes, warps, kind, flops)

    def tensor_flops(self, lanes, warps, kind, flops):
        """Operations of tensor cores, by each of these warps."""
        self.counts.flops[kind] += flops * warps.size
        followed = self.pipeline.lane
        if followed is None:
            known = warps.size if self.pipeline.memory is not None and lanes.block.shared_root is self.pipeline.memory else 0
        else:
            known = (warps + lanes.first // self.threads * self.warps == self.warp_of(followed)).sum()
        self.pipeline.step_flops[-1] += int(flops * known)

    def warp_of(self, lane):
        """The numbers of the warps of lanes, counted over all blocks."""
        return lane // self.threads * self.warps + lane % self.threads // WARP_SIZE

    def barrier(self, blocks):
        """A barrier of this number of blocks."""
        self.counts.trace.barriers += blocks

    # cp.async, of which the pipeline follows one lane

    def copies_start(self, lanes, chosen, array, start, valid, address):
        """cp.async of the lanes `chosen`. start: first bytes in the array's memory; valid: how many are read; address: the shared one."""
        chosen, reads = (lanes.serial - lanes.first)[chosen], valid > 0
        if reads.any():
            self.access(lanes, chosen[reads], "global", array.name, start[reads], valid[reads], "read")
        self.access(lanes, chosen, "shared", "", address, WIDEST, "write")
        serial, pipeline = chosen + lanes.first, self.pipeline
        if pipeline.lane is None and pipeline.memory is None:
            pipeline.lane = int(serial.min())
        if pipeline.lane is not None and (serial < pipeline.lane).any():
            raise NotInLanes("copies of which another thread begins the first one when threads run one after the other")
        for number in np.flatnonzero(serial == pipeline.lane).tolist():
            pipeline.open.append((int(address[number]), WIDEST, lanes.site.line))

    def follows(self, lanes):
        """Whether the lane that the pipeline follows is one of these in the mask."""
        return self.pipeline.lane is not None and self.pipeline.lane - lanes.first in lanes.numbers

    def copies_committed(self, lanes):
        """cp.async.commit_group."""
        if self.follows(lanes):
            self.pipeline.close_group()

    def copies_awaited(self, lanes, pending):
        """cp.async.wait_group."""
        if self.follows(lanes):
            self.pipeline.wait(pending)

    # Counts

    def count_requests(self, log, ended=False):
        """Turn the accesses of a log into counts; until its lanes have ended, only those requests that whole warps have made."""
        for key, entries in list(log.entries.items()):
            time, lane, start, width, count = log.columns(entries)
            warp, most = self.warp_of(lane), int(count.max()) + 1
            ids, request = np.unique(warp * most + count, return_inverse=True)
            request, whole = request.reshape(-1), np.minimum(WARP_SIZE, self.threads - ids // most % self.warps * WARP_SIZE)
            first = lane == lane.min()
            first = np.flatnonzero(first)[time[first].argmin()]
            accesses = Accesses(request, lane % self.threads % WARP_SIZE, start, width)
            log.note_example(key, (int(lane[first]), int(time[first])), [one[request == request[first]] for one in accesses[1:]])
            complete = (np.bincount(request) == whole) | ended
            chosen = complete[request]
            log.entries[key] = [tuple(one[~chosen] for one in (time, lane, start, width, count))] if not chosen.all() else []
            if complete.any():
                renumbered = (np.cumsum(complete) - 1)[request[chosen]]
                accesses, site = Accesses(renumbered, *(one[chosen] for one in accesses[1:])), self.sites[key[3]]
                self.counts.requests(site.place, site.line, *key[:3], accesses, whole[complete])
        log.entries = defaultdict(list, {key: entries for key, entries in log.entries.items() if entries})
        log.count = sum(entry[1].size for entries in log.entries.values() for entry in entries)

    def end_log(self, log):
        """Count the accesses of a log whose lanes have ended."""
        self.count_requests(log, ended=True)
        for key, (_, columns) in sorted(log.examples.items(), key=lambda item: item[1][0]):
            site = self.sites[key[3]]
            self.counts.example(key, site.place, site.line, zip(*(column.tolist() for column in columns)))

    def finish(self):
        """The Trace, when all blocks have ended."""
        self.counts.finish()
        found = self.counts.trace
        found.pipeline, found.step_flops = self.pipeline.groups, self.pipeline.step_flops
        return found


class FibreEvents(Monitor):
    """Hears of what the threads' instructions do, for a LaneTracer."""

    spaces = ("global", "shared")

    def __init__(self, tracer):
        self.tracer = tracer

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        if array.space == "shared" and kind == "write" and self.tracer.pipeline.arrival(array, start_byte):
            return  # the write was counted when the copy started
        self.accesses(thread, array, [start_byte], byte_count, kind, frame)

    def accesses(self, thread, array, start_bytes, byte_count, kind, frame):
        lanes, number = thread.worker.lanes, np.array([thread.number])
        for start in start_bytes:
            self.tracer.access(lanes, number, array.space, array.name, np.array([start]), byte_count, kind)

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        lanes, pipeline = thread.worker.lanes, self.tracer.pipeline
        if event == "bulk" and pipeline.lane is None and pipeline.memory is None:
            self.tracer.steps = self.tracer.step + 1
        self.tracer.pipeline.event(thread, event, array, start_byte, byte_count, lanes.site.line)
        if event == "st_async":
            self.tracer.access(lanes, np.array([thread.number]), "shared", "", np.array([start_byte]), byte_count, "write")

    def transfer_starts(self, transfer):
        if transfer.barrier is not None and not self.tracer.staged:
            self.tracer.staged, self.tracer.steps = True, self.tracer.step + 1

    def collective(self, warp, kind, lanes, mask, frame):
        self.tracer.counts.collectives[kind] += 1


def monitor_of(launch):
    """What the threads' instructions of a launch in fibres report to, a Monitor or None."""
    watching = [] if launch.watch is None else [launch.watch.events]
    return combined(watching + ([] if launch.tracer is None else [FibreEvents(launch.tracer)]))
