"""The stages of a pipeline that bulk copies fill, as a trace follows them in the first block that has one.

A stage is the memory whose copies complete on one mbarrier. In each round, a phase of the mbarrier, it is filled by copies, waits full, is
used (wgmma or threads read it), and is free again. A moment begins where one of these begins, in the order of the simulation. A GPU may
do things earlier or at the same time; a copy never lands later than here, since it does so when somebody waits for it.
"""

import numpy as np

from minllm.sim.detectors.transfers import CHUNKS
from minllm.sim.trace_numbers import StageRound
from minllm.sim.transfer import CHUNK


class Stages:
    """Fed by a Tracer; after `finish`, `rounds` are those of all stages in order of their first copy, and `moments` how many there were."""

    def __init__(self):
        self.block, self.stage_of_chunk = None, None
        self.stages = {}  # address of the mbarrier -> the stage's number
        self.current = []  # by stage: (phase of its mbarrier, its round under way)
        self.under_way = {}  # transfer -> the round of its stage
        self.rounds, self.moments = [], 0

    def next_moment(self):
        """Something has happened: its number."""
        self.moments += 1
        return self.moments - 1

    def copy_starts(self, transfer):
        """A bulk copy into shared memory begins."""
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
        """A bulk copy has arrived."""
        entry = self.under_way.pop(transfer, None)
        if entry is not None:
            entry.arrived = self.next_moment()

    def used(self, block, chunks):
        """These chunks are read by threads, or wgmma begins or ends to read them."""
        if block is self.block:
            for stage in set(self.stage_of_chunk[chunks].tolist()) - {-1}:
                _, entry = self.current[stage]
                if entry.arrived is not None:
                    moment = self.next_moment()
                    entry.used = moment if entry.used is None else entry.used
                    entry.done = moment

    def finish(self):
        """Number the moments anew: only those at which a stage went on to its next state."""
        names = ("issued", "arrived", "used", "done")
        kept = sorted({getattr(entry, name) for entry in self.rounds for name in names} - {None})
        places = {moment: place for place, moment in enumerate(kept)} | {None: None}
        for entry in self.rounds:
            for name in names:
                setattr(entry, name, places[getattr(entry, name)])
        self.moments = len(kept)
