"""Fibres: sets of threads of a block that go together, each in a greenlet of its own, so that one can wait for another.

A kernel with instructions that have no lane form (mbarriers, TMA, wgmma, named barriers) runs in fibres, one for each block at first. Such
an instruction is executed by the simulator's threads: its emulation is called for one lane of the mask after the other, and if the lanes
must meet in it, in a greenlet for each. If lanes in a branch wait for other lanes of their fibre, neither can go on: then the launch is
undone and begins anew with their warps in a fibre of their own. So a pipeline of a producer warp and two warpgroups that multiply has three
fibres. The next launch begins with them.
"""

import contextvars

import numpy as np
from greenlet import GreenletExit, greenlet

from minllm.errors import SimulationError
from minllm.sim.cluster import Cluster, check_cluster
from minllm.sim.cuda_memory import SharedMemory
from minllm.sim.lanes.arrays import LaneArray, Root, row_major
from minllm.sim.lanes.faults import BlocksMeet, Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR
from minllm.sim.lanes.memory import extents
from minllm.sim.lanes.operations import column
from minllm.sim.lanes.state import Lanes
from minllm.sim.lanes.trace import Log, monitor_of
from minllm.sim.machine import Block
from minllm.sim.monitored_arrays import checked
from minllm.sim.thread import Dimensions, Thread, _running, indices_of

MOST_FORKS = 8  # of one launch
WARPGROUP = 128


class Refork(Exception):
    """The launch must begin anew, with the fibres of `partition`: the number of the fibre of each thread."""

    def __init__(self, parted, before):
        """parted: FibreLanes of which some lanes wait; their warps get a fibre of their own, or these lanes if all warps wait."""
        parted = [lanes for lanes in parted if lanes.block is parted[0].block]
        whole = [lanes for lanes in parted if not lanes.waiting_warps.all()]
        self.partition = before.copy()
        for lanes in whole or parted:
            self.partition[lanes.number[lanes.waiting_warps if whole else lanes.waiting]] = self.partition.max() + 1


class Fibre(greenlet):
    """Some threads of a block. lanes: their state. worker: itself, so that it can stand in the queue of runnable threads."""

    def __init__(self, block, threads, launch, first):
        super().__init__()
        self.block, self.worker, self.ended, self.pending, self.calls = block, self, False, 0, []
        self.lanes = FibreLanes(launch, block, threads, first, self)
        self.gr_context = contextvars.copy_context()

    def run(self):
        """Run the kernel for the fibre's threads to its end."""
        launch = self.lanes.launch
        with np.errstate(all="ignore"):
            launch.form(self.lanes, *launch.arguments)
        self.ended = True
        self.lanes.end()
        for thread in self.lanes.members:
            thread.worker, thread.dead = None, True
            self.block.end_thread(thread)
        self.block.fibres_at_barrier()

    def pause(self):
        """Let others run until this fibre stands in the queue again."""
        self.parent.switch()

    def abandon(self):
        """End the greenlets of this fibre that wait, so that none of them ends during another launch, when Python collects it."""
        for one in (self, *self.calls):
            if one:
                one.throw(GreenletExit)


class LaneCall(greenlet):
    """One thread in an instruction in which threads meet."""

    def __init__(self, fibre, thread, function, arguments):
        super().__init__(parent=fibre.parent)
        self.fibre, self.lanes, self.thread, self.function, self.arguments = fibre, fibre.lanes, thread, function, arguments
        self.result, thread.worker = None, self
        self.gr_context = contextvars.copy_context()

    def run(self):
        """Call the instruction; the last thread lets the fibre go on."""
        _running.set(self.thread)
        self.result = self.function(*self.arguments)
        self.fibre.pending -= 1
        if self.fibre.pending == 0:
            self.fibre.block.runnable.append(self.fibre)


class FibreBlock(Block):
    """A block whose threads run in fibres."""

    def begin(self, launch, first, partition):
        """Make the threads and fibres. first: the block's number in the launch; partition: the fibre of each thread, a number."""
        self.threads = [Thread(self, number, index) for number, index in enumerate(indices_of(self.dimensions))]
        self.shared_declared, self.memory, self.partition = {}, BlockMemory(self), partition
        self.number, self.watch, self.products, self.epoch = first, launch.watch, {}, 0  # products: of each warpgroup
        self.tracer, self.traced = launch.tracer, Log(len(self.threads))
        if self.watch is not None:
            self.watch.start_block(self)
        # The fibre of the block's first thread begins, as that thread does.
        sets = sorted((np.flatnonzero(partition == one) for one in np.unique(partition)), key=lambda threads: threads[0])
        self.fibres = [Fibre(self, threads, launch, first) for threads in sets]
        self.arrived = []
        self.runnable.extend(self.fibres)

    def arrive(self, fibre):
        """A fibre, with all its living threads, has reached a block barrier; it continues when all others have."""
        self.arrived.append(fibre)
        self.fibres_at_barrier()
        fibre.pause()

    def fibres_at_barrier(self):
        """Release the barrier if all living fibres are there."""
        if self.arrived and len(self.arrived) == sum(not one.ended for one in self.fibres):
            if self.watch is not None:
                self.watch.block_barrier(self)
            if self.tracer is not None:
                self.tracer.barrier(1)
            self.runnable.extend(self.arrived)
            self.arrived = []


class BlockMemory:
    """The shared memory of a block, with the interface of memory.SharedMemory."""

    def __init__(self, block):
        self.block, self.bytes, self.row = block, block.shared, block.shared.size
        self.root = Root(self.bytes, "", "shared")

    @property
    def top(self):
        """The end of the allocated memory, in bytes."""
        return self.block.shared_top


class FibreLanes(Lanes):
    """The lanes of a fibre. members: their threads; together: those that wait in a part of an instruction, before it goes on to others."""

    together = ()

    def __init__(self, launch, block, threads, first, fibre):
        super().__init__(launch, [block.index], first, threads)
        self.block, self.fibre, self.members = block, fibre, [block.threads[number] for number in threads.tolist()]
        self.memory, self.shared, self.seen, self.traced = block.memory, block.shared_declared, {}, block.traced

    def make_shared(self, shape, dtype, alignment, name):
        """A shared array at the place that the threads' allocator gives it."""
        shape = extents(shape)
        start, stop = SharedMemory().place(self.block, 0 if shape == (0,) else shape, dtype, alignment)
        if shape == (0,):
            shape = ((stop - start) // dtype.itemsize,)
        flat = self.memory.bytes.view(dtype)
        return LaneArray(self.memory.root, flat, shape, row_major(shape), start // dtype.itemsize, name)

    def syncthreads(self):
        """A barrier of the block's fibres; all living lanes of this one must be here."""
        if self.is_parted:
            raise Refork([self], self.block.partition)
        if self.watch is not None:
            self.watch.reach(self)
        self.block.arrive(self.fibre)

    @property
    def running(self):
        """The threads of the mask."""
        return self.members if self.chosen is None else [self.members[lane] for lane in self.chosen.tolist()]

    def alike(self, *operands):
        """[(operands, the threads of the mask that have them)] of an instruction."""
        if not any(type(one) is VECTOR for one in operands):
            return [(operands, self.running)]
        numbers, found = (range(self.size) if self.chosen is None else self.chosen.tolist()), {}
        for thread, *row in zip(self.running, *(self.operands(one, numbers) for one in operands)):
            found.setdefault(tuple(row), []).append(thread)
        return list(found.items())

    def warpgroups(self):
        """The slices of lanes that are warpgroups of the mask."""
        chosen, found = self.lane if self.chosen is None else self.chosen, []
        for first in range(0, chosen.size, WARPGROUP):
            part = chosen[first : first + WARPGROUP]
            ends = self.number[part[[0, -1]]] // WARPGROUP
            if part.size < WARPGROUP or part[-1] - part[0] != WARPGROUP - 1 or ends[0] != ends[1]:
                raise NotInLanes("an instruction of a warpgroup whose threads are not all here")
            found.append(slice(int(part[0]), int(part[-1]) + 1))
        return found

    def release(self, threads, thing):
        """Report that what these threads have accessed so far is visible after an acquire of `thing`."""
        if self.watch is not None and threads:
            self.watch.release(self.block, np.array([thread.number for thread in threads]), thing)

    def arrives(self, threads, thing):
        """Report relaxed arrivals of these threads."""
        if self.watch is not None and threads:
            self.watch.clusters.arrive_together(self.block, np.array([thread.number for thread in threads]), thing)

    def acquire(self, threads, thing):
        """Report that these threads see all that was released to `thing`."""
        if self.watch is not None and threads:
            self.watch.acquire(self.block, np.array([thread.number for thread in threads]), thing)

    @property
    def waiting(self):
        """Which lanes wait: those of the mask, or of the instruction's part in which the fibre waits."""
        if self.together:
            return np.isin(self.number, [thread.number for thread in self.together])
        return np.ones(self.size, bool) if self.mask is None else self.mask

    @property
    def waiting_warps(self):
        """The lanes of the warps that have lanes that wait."""
        return np.isin(self.warp_of, self.warp_of[self.waiting])

    @property
    def is_parted(self):
        """Whether some living lanes of the fibre do not wait here."""
        return not (self.waiting | self.dead).all()

    def each(self, function, *values):
        """As in Lanes; the function may ask for the block of the running thread."""
        _running.set(self.members[0 if self.chosen is None else self.chosen[0]])
        return super().each(function, *values)

    def run_as(self, thread, function, *arguments):
        """function(...), called by a thread of the fibre."""
        thread.worker = self.fibre
        _running.set(thread)
        return function(*arguments)

    def wait_as(self, threads, function, *arguments):
        """function(...), called by the first of threads of the fibre that wait together."""
        self.together = threads
        found = self.run_as(threads[0], function, *arguments)
        self.together = ()
        return found

    def by_threads(self, function, meets, *operands):
        """Execute an instruction by its emulation, once for each lane of the mask; returns vectors."""
        chosen = np.arange(self.size) if self.chosen is None else self.chosen
        numbers = chosen.tolist()
        threads = [self.members[lane] for lane in numbers]
        columns = [self.operands(one, numbers) for one in operands]
        rows = list(zip(*columns)) if columns else [()] * len(threads)
        if meets and len(threads) > 1:
            found = self.meeting(function, threads, rows)
        else:
            found = [self.run_as(thread, function, *row) for thread, row in zip(threads, rows)]
        return self.gathered(found, chosen)

    def meeting(self, function, threads, rows):
        """The results of threads that meet in an instruction."""
        calls = self.fibre.calls = [LaneCall(self.fibre, thread, function, row) for thread, row in zip(threads, rows)]
        self.fibre.pending = len(calls)
        self.block.runnable.extend(threads)
        self.fibre.pause()
        self.fibre.calls = []
        return [call.result for call in calls]

    def gathered(self, found, chosen):
        """The vectors of the results of the lanes `chosen`; a plain number if all are equal."""
        if found[0] is None:
            return None
        if all(type(one) is int and one == found[0] for one in found):
            return found[0]
        made = column(found)
        return made if chosen.size == self.size else self.spread(made, chosen)

    def operands(self, value, numbers):
        """An operand as each of the threads with these numbers has it."""
        if type(value) is VECTOR or (isinstance(value, LaneArray) and (value.local or value.varies)):
            return [self.scalar(value, lane) for lane in numbers]
        return [self.scalar(value, 0)] * len(numbers)

    def scalar(self, value, lane):
        """An operand as a thread has it."""
        if type(value) is VECTOR:
            found = value[lane]
            return int(found) if found.dtype.kind in "iu" else found
        if isinstance(value, LaneArray):
            return self.as_checked(value, lane)
        return value

    def as_checked(self, array, lane):
        """The CheckedArray of an array as one lane sees it."""
        if array.local:
            key, row = (id(array.root), array.shape, lane), array.root.flat.T[lane]
            if type(array.offset) is VECTOR or array.offset or not array.contiguous:
                raise NotInLanes("an instruction on a part of a local array")
            if key not in self.seen:
                self.seen[key] = array, self.made_checked(array, row.reshape(array.shape), 0, lane)
            return self.seen[key][1]
        offset = int(array.offset[lane]) if type(array.offset) is VECTOR else int(array.offset)
        key = id(array.root), array.dtype, array.shape, array.strides, offset
        if key not in self.seen:
            strides = tuple(stride * array.itemsize for stride in array.strides)
            data = np.lib.stride_tricks.as_strided(array.flat[offset:], array.shape, strides)
            self.seen[key] = array, self.made_checked(array, data, offset * array.itemsize)
        return self.seen[key][1]

    def made_checked(self, array, data, base, lane=None):
        """The CheckedArray of an array's elements, which reports accesses if the launch is watched."""
        made = checked(data, array.space, base, array.name, self.block.monitor)
        self.launch.owners[id(made)] = made, array.root, lane
        return made

    def wait_for_predecessors(self):
        """The lanes of the mask, and so their threads, have waited for earlier launches."""
        super().wait_for_predecessors()
        for thread in self.running:
            thread.has_waited_for_predecessors = True

    def end(self):
        """All lanes have ended."""
        if any(self.block.products[group].under_way for group in set((self.number // WARPGROUP).tolist()) & set(self.block.products)):
            raise Fault("a warpgroup ends with products under way")


def run_in_fibres(launch, how, indices, resident):
    """Run all blocks of a launch, or all clusters, one after the other."""
    partitions = launch.inference.__dict__.setdefault("partitions", {})
    partition = partitions.setdefault(how.block, np.zeros(how.block.x * how.block.y * how.block.z, int))
    for _ in range(MOST_FORKS):
        launch.save_all()
        launch.watch = launch.make_watch()
        launch.tracer = launch.make_tracer()
        monitor = monitor_of(launch)
        try:
            for number, group in enumerate(groups_of(how, indices)):
                blocks = [FibreBlock(index, how.block, how.grid, how.shared_bytes, monitor, resident) for index in group]
                if how.cluster is not None:
                    Cluster(check_cluster(how.cluster, how.grid), blocks)
                for rank, block in enumerate(blocks):
                    block.begin(launch, number * len(blocks) + rank, partition)
                run_together(blocks)
                if launch.tracer is not None:
                    for block in blocks:
                        launch.tracer.end_log(block.traced)
                    launch.tracer.step += 1
                launch.progress.done = (number + 1) * len(blocks)
            if launch.watch is not None:
                launch.watch.end()
            return
        except BlocksMeet:  # an array is written that was read before, without a log of these reads
            launch.undo()
        except Refork as refork:
            launch.undo()
            partition = partitions[how.block] = refork.partition
        except SimulationError as error:
            raise Fault(str(error)) from None
    raise NotInLanes("threads that part again and again")


def groups_of(how, indices):
    """The indices of the blocks that run together: one, or those of a cluster."""
    if how.cluster is None:
        return [[index] for index in indices]
    size = check_cluster(how.cluster, how.grid)
    inside = [(x, y, z) for z in range(size.z) for y in range(size.y) for x in range(size.x)]
    firsts = [index for index in indices if not any(one % extent for one, extent in zip(index, size))]
    return [[Dimensions(*(one + offset for one, offset in zip(first, place))) for place in inside] for first in firsts]


def run_together(blocks):
    """Run the fibres of blocks that share one queue to their end."""
    runnable, fibres = blocks[0].runnable, [fibre for block in blocks for fibre in block.fibres]
    try:
        while runnable:
            runnable.popleft().worker.switch()
        waiting = [fibre.lanes for fibre in fibres if not fibre.ended]
        if waiting:
            parted = [lanes for lanes in waiting if lanes.is_parted]
            if not parted:
                raise Fault("threads wait for each other")
            raise Refork(parted, blocks[0].partition)
    finally:
        for fibre in fibres:
            fibre.abandon()
