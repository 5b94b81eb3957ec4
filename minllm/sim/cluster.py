"""Clusters: blocks that run together, share memory and have a barrier.

The blocks of a cluster share one queue of runnable threads, so the other blocks run while a thread waits for them. PTX ISA, "Cluster of
cooperative thread arrays".
"""

from minllm.errors import SimulationError
from minllm.sim.asynchrony import acquire, park, release, wake
from minllm.sim.machine import Block, run_together
from minllm.sim.thread import Dimensions

LARGEST_CLUSTER = 8  # blocks; larger clusters are not portable between GPUs


class Cluster:
    """The blocks of one cluster, in order of rank, and their barrier.

    phase: completed phases of the barrier; arrived: threads that have arrived in the current phase.
    """

    def __init__(self, dimensions, blocks):
        self.dimensions, self.blocks = dimensions, blocks
        self.phase, self.arrived, self.waiters = 0, 0, []
        self.arrived_in = {}  # thread -> phase of its last arrival
        self.history = None  # of a detector (detectors/clusters.py)
        for rank, block in enumerate(blocks):
            block.cluster, block.rank, block.runnable = self, rank, blocks[0].runnable

    def __str__(self):
        return f"the cluster's barrier, where {self.arrived} of {sum(block.alive for block in self.blocks)} threads have arrived"

    def arrive(self, thread, orders=True, others=()):
        """Execute barrier.cluster.arrive for the running thread; orders: whether its memory accesses come before the others' later ones.

        others: threads that arrive with it.
        """
        self.arrived_in.update(dict.fromkeys((*others, thread), self.phase))
        if orders:
            release(thread, (self, self.phase))
        elif thread.block.monitor is not None:
            thread.block.monitor.arrives(thread, (self, self.phase))
        self.arrived += 1 + len(others)
        self.release()

    def wait(self, thread):
        """Execute barrier.cluster.wait: wait until all living threads have arrived."""
        if self.arrived_in[thread] == self.phase:
            self.waiters.append(thread)
            park(thread, self)
        acquire(thread, (self, self.arrived_in[thread]))

    def release(self):
        """Complete the phase if all living threads have arrived; also called when a thread ends."""
        living = sum(block.alive for block in self.blocks)
        if self.arrived and self.arrived >= living:
            self.phase, self.arrived = self.phase + 1, 0
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                wake(waiter)


def check_cluster(cluster, grid):
    """`cluster` as Dimensions. Raises SimulationError if it is too large or does not divide the grid."""
    cluster = Dimensions(*cluster) if isinstance(cluster, (tuple, list)) else Dimensions(int(cluster))
    if cluster.x * cluster.y * cluster.z > LARGEST_CLUSTER or min(cluster) < 1:
        raise SimulationError(f"a cluster of {tuple(cluster)} blocks; a cluster has 1 to {LARGEST_CLUSTER}")
    if any(blocks % size for blocks, size in zip(grid, cluster)):
        raise SimulationError(f"a grid of {tuple(grid)} blocks cannot be cut into clusters of {tuple(cluster)}: make it a multiple")
    return cluster


def run_cluster(first, make_block, function, arguments, dimensions):
    """Run the threads of one cluster. first: the index of its first block; make_block(index) -> Block."""
    places = [(x, y, z) for z in range(dimensions.z) for y in range(dimensions.y) for x in range(dimensions.x)]
    blocks: list[Block] = [make_block(Dimensions(*(start + offset for start, offset in zip(first, place)))) for place in places]
    Cluster(dimensions, blocks)
    run_together(blocks, function, [arguments] * len(blocks))
