"""Warps and blocks: their threads run in greenlets (thread.py), one at a time.

A thread runs until a barrier or a warp-wide instruction. The last thread to arrive computes the result for all participants, and all of
them continue. If threads still wait and none can run, the kernel would hang or be undefined on a GPU: a SimulationError lists which threads
wait where.
"""

import ast
import contextvars
import sys

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.arrays import fail
from minllm.sim.monitored_arrays import checked
from minllm.sim.place import kernel_frame
from minllm.sim.polling import ROUNDS, check_progress
from minllm.sim.thread import WARP_SIZE, Runnable, Thread, Worker, current_thread, indices_of
from minllm.sim.typing.source import function_tree

FULL_MASK = 0xFFFFFFFF
SHARED_MEMORY_BYTES = 227 * 1024  # limit per block on compute capability 9.0


class Warp:
    """Up to 32 threads, and the warp-wide instructions that some but not all of them have reached (meetings)."""

    def __init__(self, number, monitor=None):
        self.number, self.monitor = number, monitor
        self.threads = []
        self.lanes = 0  # mask of the lanes that exist
        self.meetings = {}


class Block:
    """One thread block: its shared memory, its barrier and its threads."""

    def __init__(self, index, dimensions, grid, shared_bytes, monitor=None, resident=1, gpu=None):
        self.index, self.dimensions, self.grid = index, dimensions, grid
        self.resident = resident  # blocks per SM in the launch bounds, which share the SM's registers
        count = dimensions.x * dimensions.y * dimensions.z
        self.warps = [Warp(number, monitor) for number in range(-(-count // WARP_SIZE))]
        self.dynamic_bytes = shared_bytes
        self.shared = np.full(SHARED_MEMORY_BYTES, 0xFF, np.uint8)
        self.shared_top = -(-shared_bytes // 1024) * 1024  # end of the allocated memory: dynamic first, then static arrays
        self.shared_arrays, self.static_bytes = {}, 0
        self.monitor = monitor
        self.shared_root = checked(self.shared, "shared", 0, "", monitor)
        self.runnable = Runnable()
        self.at_barrier = []
        self.threads = []
        self.alive = count
        self.cluster, self.rank = None, 0  # cluster.Cluster, and the block's rank in it
        self.gpu = gpu  # the rank of the block's GPU if several GPUs take part in the launch (ranks.py)
        self.cooperative = None  # cooperative.Grid, if the kernel synchronises the whole grid
        self.asynchronous = None  # asynchrony.BlockState, once the block uses mbarriers or other asynchronous state

    def __str__(self):
        return f"{'' if self.gpu is None else f'rank {self.gpu}, '}block {tuple(self.index)}"

    def run(self, function, arguments):
        """Run all threads to their end."""
        run_together([self], function, [arguments])

    def end_thread(self, thread):
        """Called when a thread has returned: barriers no longer wait for it."""
        self.alive -= 1
        if self.alive == 0 and self.monitor is not None:
            self.monitor.exits(self)
            if self.asynchronous is not None and (complaint := self.asynchronous.end()):
                raise SimulationError(f"{self} {complaint}")
        self.release_barrier()
        if thread.asynchronous is not None and (complaint := thread.asynchronous.end()):
            raise SimulationError(f"{self}, thread {tuple(thread.index)} {complaint}")
        if self.cluster is not None:
            self.cluster.release()

    def shared_transfer(self, thread, event, address, byte_count):
        """Check the destination of an asynchronous copy and report it to the monitor."""
        end = address + byte_count
        if address < 0 or end > self.shared_top or (address < self.dynamic_bytes < end):
            fail(f"{event} writes {byte_count} bytes at shared address {address}, which no array of the block holds")
        if self.monitor is not None:
            frame = kernel_frame(sys._getframe(1))
            self.monitor.asynchronous(thread, event, self.shared_root, address, byte_count, frame)

    def shared_name(self, address):
        """`variable[index]` of the element at a shared address, as text for messages."""
        for array in self.shared_arrays.values():
            if array.base <= address < array.base + array.size * array.itemsize:
                index = np.unravel_index((address - array.base) // array.itemsize, array.shape)
                return f"{array.name or 'a shared array'}[{', '.join(str(int(i)) for i in index)}]"
        return "memory outside any array"

    def release_barrier(self):
        """Release the barrier once all living threads have reached it."""
        if self.at_barrier and len(self.at_barrier) == self.alive:
            values = [value for _, value in self.at_barrier]
            if self.monitor is not None:
                self.monitor.barrier(self, [thread for thread, _ in self.at_barrier])
            for thread, _ in self.at_barrier:
                thread.result = values
                self.runnable.append(thread)
            self.at_barrier = []

    def report_stuck(self):
        """A message that lists which threads wait where."""
        waiting = {}
        for thread in self.threads:
            if not thread.dead:
                what = thread.waiting_for
                what = "{} with mask {:#010x}".format(*what) if isinstance(what, tuple) else str(what)
                waiting.setdefault(f"{what}, {line_of_kernel(thread)}", []).append(thread.number)
        lines = [f"{len(numbers)} threads (the first is {numbers[0]}) wait at {what}" for what, numbers in waiting.items()]
        return f"{self} cannot go on: " + "; ".join(lines)


def run_together(blocks, function, arguments):
    """Run all threads of blocks that share one queue of runnable threads to their end. arguments: one tuple per block."""
    runnable = blocks[0].runnable
    for block, own in zip(blocks, arguments, strict=True):
        block.function, block.arguments = function, own
        block.threads = [Thread(block, number, index) for number, index in enumerate(indices_of(block.dimensions))]
        runnable.extend(block.threads)
        if block.monitor is not None:
            block.monitor.start_block(block)
    run_all(runnable, blocks)
    while any(block.alive for block in blocks):
        if not any(meet_without_exited(warp) for block in blocks for warp in block.warps) and not meet_as_grid(blocks[0].cooperative):
            missing = blocks[0].cooperative.missing() if blocks[0].cooperative else ""
            raise SimulationError("; ".join(block.report_stuck() for block in blocks if block.alive) + missing)
        run_all(runnable, blocks)
    for block in blocks:
        if block.monitor is not None:
            block.monitor.end_block(block)


def run_all(runnable, blocks):
    """Run threads until none is runnable."""
    with np.errstate(all="ignore"):  # a kernel's overflows and divisions by 0.0 give infinity, as on a GPU
        context = contextvars.copy_context()
    while runnable:
        first = runnable.popleft()
        if first.worker is None:
            worker = Worker()
            worker.gr_context = context.copy()
            worker.switch(first, runnable)
        else:
            first.worker.switch()
        if runnable.polls and runnable.polls % ROUNDS == 0:
            check_progress(runnable.polls, blocks)


def meet_as_grid(grid):
    """Complete the barrier of a cooperative grid if its missing threads have returned; returns whether it did. grid: may be None."""
    return grid is not None and grid.release_without_returned()


def meet_without_exited(warp):
    """Complete warp-wide instructions of which all missing lanes have returned; returns whether there were any.

    Lanes that exited before the instruction need not take part, but lanes that passed it by another branch must. Missing lanes count as
    exited before it only if the kernel has a return statement above the instruction's line.
    """
    found = False
    for (kind, mask), meeting in list(warp.meetings.items()):
        missing = [thread for thread in warp.threads if mask >> thread.lane & 1 and thread.lane not in meeting]
        first = next((warp.threads[lane] for lane in meeting), None)
        if kind != "activemask" and first is not None and all(thread.dead for thread in missing) and returns_early(first):
            finish(warp, kind, mask, kernel_frame(first.frame))
            found = True
    return found


def returns_early(thread):
    """Whether the kernel has a return statement above the line at which a thread waits."""
    frame, outermost = kernel_frame(thread.frame), None
    while frame is not None:
        outermost, frame = frame, kernel_frame(frame.f_back)
    function = getattr(thread.block.function, "simulated_twin_of", thread.block.function)
    tree = function_tree(function)
    if tree is None or outermost is None:
        return True
    return any(isinstance(node, ast.Return) and node.lineno < outermost.f_lineno for node in ast.walk(tree))


def line_of_kernel(thread):
    """The line of the kernel at which a thread waits, as text."""
    frame = kernel_frame(thread.frame)
    return f"line {frame.f_lineno} of {frame.f_code.co_name}" if frame else "an unknown line"


def barrier(value=None):
    """Wait for all living threads of the block; returns the values of all of them."""
    thread = current_thread()
    block = thread.block
    block.at_barrier.append((thread, value))
    thread.waiting_for = "a block barrier"
    if len(block.at_barrier) == block.alive:
        block.release_barrier()
    thread.pause()
    return thread.result


def finish(warp, kind, mask, frame):
    """Complete a warp-wide instruction: give each waiting lane its result and make it runnable."""
    meeting = warp.meetings.pop((kind, mask))
    if warp.monitor is not None:
        warp.monitor.collective(warp, kind, list(meeting), mask, frame)
    running, threads = current_thread(), warp.threads
    last = threads[next(reversed(meeting))]
    runnable, results = last.block.runnable, last.compute(meeting)
    for lane in meeting:
        thread = threads[lane]
        thread.result = results[lane]
        if thread is not running:
            runnable.append(thread)


def collective(kind, value, compute, mask=FULL_MASK):
    """Execute a warp-wide instruction for the lanes of `mask`; returns the running lane's result.

    The last lane to arrive computes `compute({lane: value})` -> {lane: result}. kind: the instruction's name.
    """
    thread = current_thread()
    warp, lane, mask = thread.warp, thread.lane, int(mask) & FULL_MASK
    if not mask >> lane & 1:
        fail(f"lane {lane} calls {kind} with mask {mask:#010x}, which leaves it out")
    key = kind, mask
    meeting = warp.meetings.get(key)
    if meeting is None:
        meeting = warp.meetings[key] = {}
    meeting[lane] = value
    if len(meeting) == (mask & warp.lanes).bit_count():
        thread.compute = compute
        finish(warp, kind, mask, kernel_frame(sys._getframe(1)) if warp.monitor is not None else None)
        return thread.result
    thread.waiting_for, thread.compute = key, compute
    thread.pause()
    return thread.result
