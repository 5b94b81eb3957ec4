"""The counts of a trace while a launch runs, for either engine: requests are added one by one, or as vectors of their lanes' accesses."""

from collections import Counter

import numpy as np

from minllm.sim.trace_numbers import ArrayTraffic, PartialLine, Request, SharedLine, Trace
from minllm.sim.traffic import SECTOR_BYTES, WIDEST, LaneAccess, sectors, sectors_of, turns, turns_of


class Counts:
    """Builds a Trace.

    spans: bytes from the first to the last of each global array. An instruction is named by its place (file and function) and its line.
    """

    def __init__(self, name, grid, block, shared_bytes):
        self.trace = Trace(name, tuple(grid), tuple(block), shared_bytes)
        self.spans, self.masks = {}, {}  # masks: (array name, kind) -> bool per byte: whether it was accessed
        self.shared_lines, self.partial_lines, self.examples = {}, {}, {}
        self.flops, self.collectives = Counter(), Counter()

    def add_array(self, name, array_bytes, span):
        """Add an argument in global memory."""
        self.trace.arrays[name] = ArrayTraffic(name, array_bytes)
        self.spans[name] = span

    def example(self, key, place, line, accesses):
        """Keep the first request of an instruction. key: (space, array, kind, instruction); accesses: (lane, start, width)."""
        if key not in self.examples:
            self.examples[key] = Request(place, line, *key[:3], [LaneAccess(*access) for access in sorted(accesses)])

    def request(self, place, line, space, name, kind, request, whole):
        """Add a request, a list of LaneAccesses. whole: the number of lanes of its warp."""
        self.partial(place, line, 1, request[0][2] <= WIDEST and len(request) < whole)
        size = sum(width for _, _, width in request)
        if space == "global":
            self.count_global(name, kind, 1, size, len(sectors(request)))
            mask = self.mask(name, kind)
            for _, start, width in request:
                mask[start : start + width] = True
        else:
            self.count_shared(place, line, name, kind, 1, size, turns(request, kind == "atomic"))

    def requests(self, place, line, space, name, kind, accesses, whole):
        """Add many requests of an instruction, an Accesses. whole: for each request the number of lanes of its warp."""
        number, lane, start, width = accesses
        sizes = np.bincount(number)
        least = np.full(sizes.size, WIDEST + 1)
        np.minimum.at(least, number, width)
        self.partial(place, line, sizes.size, int(((sizes < whole) & (least <= WIDEST)).sum()))
        if space == "global":
            self.count_global(name, kind, sizes.size, int(width.sum()), sectors_of(accesses))
            self.mark(self.mask(name, kind), start, width)
        else:
            self.count_shared(place, line, name, kind, sizes.size, int(width.sum()), turns_of(accesses, kind == "atomic"))

    def partial(self, place, line, requests, partial):
        """Add requests of a line, of which some were made by part of a warp."""
        entry = self.partial_lines.setdefault((place, line), PartialLine(place, line))
        entry.requests += requests
        entry.partial += partial

    def count_global(self, name, kind, requests, size, touched):
        """Add requests to their array's traffic."""
        traffic = getattr(self.trace.arrays[name], kind)
        traffic.requests += requests
        traffic.bytes += size
        traffic.sectors += touched

    def mask(self, name, kind):
        """The mask of the bytes of an array that were accessed."""
        if (name, kind) not in self.masks:
            self.masks[name, kind] = np.zeros(self.spans[name], bool)
        return self.masks[name, kind]

    def mark(self, mask, start, width):
        """Mark the bytes of accesses."""
        for size in np.unique(width).tolist():
            first = start[width == size]
            if size > SECTOR_BYTES:
                for one in first.tolist():
                    mask[one : one + size] = True
                continue
            for number in range(size):
                mask[first + number] = True

    def count_shared(self, place, line, name, kind, requests, size, busy):
        """Add requests to their line's traffic. busy: the turns of each group of lanes that is served at once."""
        entry = self.shared_lines.setdefault((place, line, name, kind), SharedLine(place, line, name, kind))
        entry.requests += requests
        entry.bytes += size
        entry.turns += int(sum(busy))
        entry.least += len(busy)
        entry.worst = max(entry.worst, int(max(busy)))

    def finish(self):
        """Complete the Trace's counts, when all blocks have ended."""
        found = self.trace
        for (name, kind), mask in self.masks.items():
            getattr(found.arrays[name], kind).unique_bytes = int(mask.sum())
        first = {}  # accesses of one line in the order of execution
        for number, one in enumerate(self.examples.values()):
            first.setdefault((one.place, one.line, one.array, one.kind), number)
        found.shared = [entry for _, entry in sorted(self.shared_lines.items(), key=lambda item: (*item[0][:2], first[item[0]]))]
        found.partial = sorted((e for e in self.partial_lines.values() if e.partial), key=lambda entry: (entry.place, entry.line))
        found.examples = list(self.examples.values())
        found.flops = dict(sorted(self.flops.items(), key=lambda item: ("mma" not in item[0], item)))
        found.collectives = dict(sorted(self.collectives.items()))
