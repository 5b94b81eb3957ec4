"""A log of accesses to memory, and the search for two of different threads that may race.

The search is a filter: it passes what is certainly ordered by barriers of blocks and of warps, and everything else sends the launch to the
threads, whose detectors know all orders and give the verdict.
"""

import numpy as np

READ, WRITE, ATOMIC = 0, 1, 2
NAMES = {READ: "read", WRITE: "write", ATOMIC: "atomic"}
DENSE = 16  # numbers up to this many times their count are small


class Log:
    """Accesses as vectors: first byte, bytes, thread, kind, epoch (grows at block barriers), clock (grows at warp barriers), value.

    position: the number of the access in a sequence that barriers, fences and atomics have places in too.
    """

    def __init__(self):
        self.entries, self.count = [], 0

    def add(self, start, size, thread, kind, epoch, clock, value=None, position=0):
        """Add an access of several lanes; epoch, clock, value: vectors, or numbers for all lanes."""
        self.entries.append((start, size, thread, kind, epoch, clock, value, position))
        self.count += start.size

    def columns(self):
        """(granule, thread, kind, epoch, clock, value, position) of all accesses, in granules as large as the smallest access."""
        starts, sizes, threads, kinds, epochs, clocks, values, positions = zip(*self.entries)
        granule, counts = min(sizes), [start.size for start in starts]
        pieces = [size // granule for size in sizes]
        units = [
            start // granule if parts == 1 else (start[:, None] // granule + np.arange(parts)).reshape(-1)
            for start, parts in zip(starts, pieces)
        ]
        values = [np.nan if value is None or parts > 1 else value for value, parts in zip(values, pieces)]
        rest = (spread(column, counts, pieces) for column in (threads, kinds, epochs, clocks, values, positions))
        return [np.concatenate(units), *rest]


def spread(values, counts, pieces):
    """A number or vector for each entry of a log as one vector: for each piece of its accesses."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return np.repeat(values, np.multiply(counts, pieces))
    each = zip(values, counts, pieces)
    vectors = [value.repeat(parts) if isinstance(value, np.ndarray) else np.full(count * parts, value) for value, count, parts in each]
    return np.concatenate(vectors)


def several(keys, values):
    """For each entry, whether another entry with the same key, a small non-negative number, has another value."""
    last = np.empty(int(keys.max()) + 1, values.dtype)
    last[keys] = values
    flags = np.zeros(last.size, bool)
    flags[keys[last[keys] != values]] = True
    return flags[keys]


def shared_by(keys, kinds):
    """For each entry, whether one with its key changes memory, and one is not an atomic."""
    changes, plain = (np.zeros(int(keys.max()) + 1, bool) for _ in range(2))
    changes[keys[kinds != READ]] = True
    plain[keys[kinds != ATOMIC]] = True
    return (changes & plain)[keys]


def suspicious(keys, threads, kinds):
    """The numbers of the entries whose key has several threads, of which one writes and one is not in an atomic."""
    chosen = np.flatnonzero(several(keys, threads))
    return chosen[shared_by(keys[chosen], kinds[chosen])] if chosen.size else chosen


def renumbered(*columns):
    """A small number for each different row of whole numbers; sorting takes longer than all else, so it is left out where it can be."""
    rows = 0
    for column in columns:
        low = column.min()
        rows = rows * (int(column.max() - low) + 1) + (column - low)
    return rows if rows.max() < DENSE * rows.size else np.unique(rows, return_inverse=True)[1]


def may_race(log, block_of, warp_of):
    """Whether two accesses in a log may race. block_of, warp_of: functions of thread numbers."""
    if not any(entry[3] != READ for entry in log.entries):
        return False
    units, threads, kinds, epochs, clocks, values, _ = log.columns()
    chosen = suspicious(units, threads, kinds)
    if not chosen.size:
        return False
    units, threads, kinds, epochs, clocks, values = (one[chosen] for one in (units, threads, kinds, epochs, clocks, values))
    chosen = np.flatnonzero(~stored_alike(units, kinds, values))
    if not chosen.size:
        return False
    units, threads, kinds, epochs, clocks = (one[chosen] for one in (units, threads, kinds, epochs, clocks))
    if several(renumbered(units), block_of(threads)).any():
        return True
    keys = renumbered(units, epochs)
    chosen = suspicious(keys, threads, kinds)
    if not chosen.size:
        return False
    keys, threads, kinds, clocks = (one[chosen] for one in (keys, threads, kinds, clocks))
    if several(keys, warp_of(threads)).any():
        return True
    return bool(suspicious(renumbered(keys, clocks), threads, kinds).size)


def stored_alike(units, kinds, values):
    """For each entry, whether all accesses to its granule are stores of one known value."""
    keys = renumbered(units)
    other = several(keys, values) | np.isnan(values)
    mixed = np.zeros(int(keys.max()) + 1, bool)
    mixed[keys[other | (kinds != WRITE)]] = True
    return ~mixed[keys]
