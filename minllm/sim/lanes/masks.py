"""Masks: which lanes take part in the statement that runs.

A mask is a vector of booleans; None stands for all lanes and False for no lane. A branch on a uniform condition keeps the mask object, so
`is` tells whether lanes are missing.
"""

import numpy as np

VECTOR = np.ndarray
some = np.count_nonzero  # whether a condition holds anywhere; the method `any` takes eight times as long for a block's threads
MOST_TURNS = 1 << 16  # of a while loop, after which the launch goes to the threads, whose watchdog finds loops that cannot end


def every(condition):
    """Whether a vector of booleans is true everywhere."""
    return np.count_nonzero(condition) == condition.size


def largest(index):
    """The largest number of a vector of integers, or for a negative one a number beyond all extents; max() takes twice as long."""
    unsigned = index.view(np.uint64)
    return unsigned.item(unsigned.argmax())


def minus(mask, gone):
    """The lanes of `mask` that are not in `gone`, a part of it."""
    if mask is gone or mask is False:
        return False
    if gone is False:
        return mask
    left = ~gone if mask is None else mask & ~gone
    return left if some(left) else False


def both(mask, condition):
    """The lanes of `mask`, not False, for which a vector of booleans is true; `mask` itself if these are all."""
    found = condition if mask is None else mask & condition
    count = np.count_nonzero(found)
    if count == (found.size if mask is None else np.count_nonzero(mask)):
        return mask
    return found if count else False


def joined(first, second):
    """The lanes of two masks without a lane in common."""
    if first is False or second is False:
        return second if first is False else first
    found = first | second
    return None if every(found) else found


def truth(condition):
    """A condition as a bool or a vector of booleans."""
    if type(condition) is VECTOR:
        return condition if condition.dtype == np.bool_ else condition != 0
    return bool(condition)


def split(mask, condition):
    """(lanes for which a condition is true, lanes for which it is false)."""
    condition = truth(condition)
    if type(condition) is not VECTOR:
        return (mask, False) if condition else (False, mask)
    yes = both(mask, condition)
    return (yes, False) if yes is mask else (yes, minus(mask, yes))


class Loop:
    """A loop of the kernel. alive: the lanes that begin the next iteration; outside: lanes that have returned from inside it."""

    def __init__(self, lanes, around):
        self.lanes, self.around = lanes, around
        self.before = self.alive = lanes.mask
        self.gone, self.turns = False, 0

    def leave(self):
        """The statement `break`."""
        self.alive, self.lanes.mask = minus(self.alive, self.lanes.mask), False

    def skip(self):
        """The statement `continue`."""
        self.lanes.mask = False

    def lose(self, mask):
        """Lanes have returned inside this loop, and so from all loops around it."""
        self.alive, self.gone = minus(self.alive, mask), joined(self.gone, mask)
        if self.around is not None:
            self.around.lose(mask)

    def end(self):
        """The mask behind the loop."""
        return minus(self.before, self.gone)

    def enter(self):
        """Begin an iteration, before its condition is evaluated; whether a lane takes part."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            self.lanes.decline("a loop of more than 65,536 iterations")
        self.lanes.mask = self.alive
        return self.alive is not False

    def ends(self, condition):
        """Drop the lanes for which the loop's condition is false; whether no lane is left."""
        self.lanes.mask = self.alive = split(self.alive, condition)[0]
        return self.alive is False

    def over(self, items):
        """The items of a tuple, one after the other."""
        for item in items:
            self.lanes.mask = self.alive
            yield item
            if self.alive is False:
                return

    def range(self, start, stop=None, step=1):
        """The numbers of range(...), of which each bound may be a vector."""
        if stop is None:
            start, stop = 0, start
        if VECTOR not in (type(start), type(stop), type(step)):
            yield from self.over(range(int(start), int(stop), int(step)))
            return
        if type(step) is VECTOR:
            self.lanes.decline("range with a step that differs between threads")
        if step == 0:
            self.lanes.doubt("range with a step of 0")
        number = start
        while True:
            self.lanes.mask = self.alive = split(self.alive, number < stop if step > 0 else number > stop)[0]
            if self.alive is False:
                return
            yield number
            if self.alive is False:
                return
            number = number + step
