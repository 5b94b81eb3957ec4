"""The part of a trace that depends on the order in which the simulator runs threads: the timelines of copies and of a pipeline's stages."""

from minllm.sim.monitor import Monitor
from minllm.sim.trace_pipeline import Pipeline
from minllm.sim.trace_stages import Stages
from minllm.sim.transfer import CHUNK


class Timeline(Monitor):
    """A Monitor with the Pipeline and the Stages of the first warp or block that copies."""

    spaces = ("shared",)

    def __init__(self):
        self.pipeline, self.stages = Pipeline(), Stages()

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        self.uses(thread, array, start_byte, byte_count, kind)

    def uses(self, thread, array, start_byte, byte_count, kind):
        """Record an access to shared memory; returns whether it is the arrival of a copy."""
        if kind == "write":
            return self.pipeline.arrival(array, start_byte)
        if kind == "read" and self.stages.block is thread.block:
            self.stages.used(thread.block, slice(start_byte // CHUNK, -(-(start_byte + byte_count) // CHUNK)))
        return False

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        self.pipeline.event(thread, event, array, start_byte, byte_count, frame.f_lineno)

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

    def flops(self, thread, count, kind):
        self.pipeline.flops(thread, count)

    def add_to(self, trace):
        """Give a Trace the timelines, when all blocks have ended."""
        trace.pipeline, trace.step_flops = self.pipeline.groups, self.pipeline.step_flops
        self.stages.finish()
        trace.stages, trace.moments = self.stages.rounds, self.stages.moments
