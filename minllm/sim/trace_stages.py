"""The stages of a pipeline of bulk copies, traced in the first block that has one.

A stage is memory that is filled by copies which complete on one mbarrier. In each round, a phase of the mbarrier, the stage is filled by
copies, full, in use (wgmma or threads read it), and free again. Each change of state begins a new moment, in the order of the simulation.
On a GPU events may be earlier or simultaneous; a copy never lands later than here, where it lands when a thread waits for it.
"""

import numpy as np

from minllm.sim.detectors.transfers import CHUNKS
from minllm.sim.trace_numbers import StageRound
from minllm.sim.transfer import CHUNK


class Stages:
    """The stages, from a Tracer's events. After `finish`: rounds, the StageRounds in order of first copy; moments, how many there are."""

    def __init__(self):
        self.block, self.stage_of_chunk = None, None
        self.stages = {}  # address of the mbarrier -> the stage's number
        self.current = []  # per stage: (phase of its mbarrier, current round)
        self.under_way = {}  # transfer in flight -> the round of its stage
        self.rounds, self.moments = [], 0

    def next_moment(self):
        """Begin a new moment; returns its number."""
        self.moments += 1
        return self.moments - 1

    def copy_starts(self, transfer):
        """Record that a bulk copy into shared memory begins."""
        if self.block is None:
            self.block, self.stage_of_chunk = transfer.block, np.full(CHUNKS, -1, np.int32)
        if transfer.block is not self.block:
            return
        stage = self.stages.setdefault(transfer.barrier, len(self.stages))
        if stage == len(self.current):
            self.current.append((-1, None))
        phase, entry = self.current[stage]
        if phase != transfer.phase:  # the first copy of a round
            entry = StageRound(stage, 0 if entry is None else entry.round + 1, 0, transfer.line, self.next_moment())
            self.current[stage] = transfer.phase, entry
            self.rounds.append(entry)
        entry.bytes += transfer.chunks.size * CHUNK
        self.stage_of_chunk[transfer.chunks] = stage
        self.under_way[transfer] = entry

    def copy_ends(self, transfer):
        """Record that a bulk copy has arrived."""
        entry = self.under_way.pop(transfer, None)
        if entry is not None:
            entry.arrived = self.next_moment()

    def used(self, block, chunks):
        """Record that threads read these chunks, or that a wgmma begins or ends reading them."""
        if block is self.block:
            for stage in set(self.stage_of_chunk[chunks].tolist()) - {-1}:
                _, entry = self.current[stage]
                if entry.arrived is not None:
                    moment = self.next_moment()
                    entry.used = moment if entry.used is None else entry.used
                    entry.done = moment

    def finish(self):
        """Renumber the moments: keep only those at which a stage changed its state."""
        names = ("issued", "arrived", "used", "done")
        kept = sorted({getattr(entry, name) for entry in self.rounds for name in names} - {None})
        places = {moment: place for place, moment in enumerate(kept)} | {None: None}
        for entry in self.rounds:
            for name in names:
                setattr(entry, name, places[getattr(entry, name)])
        self.moments = len(kept)
