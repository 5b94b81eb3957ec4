"""Memory operations of system scope: what the GPUs of a host use to synchronise.

PTX ISA, "Memory Consistency Model": a store with release makes everything that its thread has done visible to the thread that reads the
stored value with acquire, and, through a block barrier, what the threads of both blocks do. A relaxed access orders nothing. A fence or an
atomic of GPU scope orders the blocks of one GPU only.
"""

from minllm.sim.polling import count_poll
from minllm.sim.thread import current_thread


def fence(thread, system=False):
    """A fence; the simulator's threads run in turn, so every store is visible at once, and only the detectors need to know."""
    if thread.block.monitor is not None:
        thread.block.monitor.fence(thread, system)


def window(array, index, byte_count, ordering):
    """`byte_count` bytes from flat element `index` on, as a uint8 view, for one atomic access of system scope.

    ordering: "relaxed", "acquire" or "release".
    """
    thread = current_thread()
    thread.ordering = ordering
    try:
        return array.window(index, byte_count, kind="atomic")
    finally:
        thread.ordering = None


def load(array, index, byte_count, dtype, ordering):
    """The elements of these bytes as a tuple of ints. A thread that loads the same again and again gives way to the others."""
    thread = current_thread()
    value = tuple(window(array, index, byte_count, ordering).view(dtype).tolist())
    if thread.polled is None:
        thread.polled = {}
    place = id(array.data), int(index)
    count_poll(thread, changed=thread.polled.get(place) != value)
    thread.polled[place] = value
    return value
