"""Cooperative launches: `cuda.cg.this_grid().sync()`, a barrier of a whole grid.

All blocks of such a grid run at the same time: here they share a queue of runnable threads; on a GPU they must all be resident at once
(CUDA C++ Programming Guide, "Grid Synchronization").
"""

from minllm.sim.arrays import fail
from minllm.sim.machine import run_together
from minllm.sim.thread import current_thread

COOPERATIVE_NAMES = {"this_grid"}  # a kernel that refers to one of these is launched cooperatively


class Grid:
    """The blocks of a cooperative grid, and their barrier."""

    def __init__(self, blocks):
        self.blocks, self.waiting = blocks, []
        self.count = sum(block.alive for block in blocks)
        for block in blocks:
            block.cooperative, block.runnable = self, blocks[0].runnable

    def __str__(self):
        return "the grid's barrier"

    def missing(self):
        """A clause for a message about threads that have returned without reaching the barrier; empty if there are none."""
        gone = [thread for block in self.blocks for thread in block.threads if thread.dead]
        if not gone or not self.waiting:
            return ""
        first = f"thread {tuple(gone[0].index)} of block {tuple(gone[0].block.index)}"
        return f"; {len(gone)} threads have returned without reaching the grid's barrier, the first of them {first}"

    def sync(self):
        """Wait for all threads of the grid."""
        thread = current_thread()
        self.waiting.append(thread)
        if len(self.waiting) < self.count:
            thread.waiting_for = self
            thread.pause()
        else:
            self.release()
        return 0

    def release(self):
        """Make all waiting threads runnable."""
        waiting, self.waiting = self.waiting, []
        if self.blocks[0].monitor is not None:
            self.blocks[0].monitor.grid_barrier()
        for block in self.blocks:
            if block.monitor is not None:
                block.monitor.barrier(block, [other for other in waiting if other.block is block])
        running = current_thread()
        self.blocks[0].runnable.extend(other for other in waiting if other is not running)

    def release_without_returned(self):
        """Release the barrier if all living threads wait; returns whether it did. Under a detector this case is a deadlock instead.

        On a GPU the barrier completes if the first thread of every block arrives, because only that thread signals for its block.
        """
        if self.blocks[0].monitor is not None and self.blocks[0].monitor.all_must_meet:
            return False
        living = sum(block.alive for block in self.blocks)
        complete = living == len(self.waiting) and not any(block.threads[0].dead for block in self.blocks)
        if complete:
            self.release()
        return complete


def this_grid():
    """`cuda.cg.this_grid()`."""
    grid = current_thread().block.cooperative
    if grid is None:
        fail("cuda.cg.this_grid() in a launch by clusters, or behind another module's name: the simulator runs such blocks in turn")
    return grid


def run_cooperatively(indices, make_block, function, arguments):
    """Run the blocks of a grid at the same time; `make_block(index)` -> Block."""
    blocks = [make_block(index) for index in indices]
    Grid(blocks)
    run_together(blocks, function, [arguments] * len(blocks))
