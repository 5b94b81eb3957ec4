"""Memory operations of system scope, by which the GPUs of a host synchronise.

A store with release makes all earlier accesses of its thread visible to a thread that reads the stored value with acquire; with block
barriers around them this extends to all threads of both blocks. A relaxed access orders nothing. A fence or an atomic of GPU scope orders
only the blocks of one GPU. PTX ISA, "Memory Consistency Model".
"""

from minllm.sim.polling import count_poll
from minllm.sim.thread import current_thread


def fence(thread, system=False):
    """Report a fence to the monitor; nothing else is needed, because threads run in turn and every store is visible at once."""
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
    """The elements in `byte_count` bytes as a tuple of ints. A thread that loads the same values repeatedly yields to the others."""
    thread = current_thread()
    value = tuple(window(array, index, byte_count, ordering).view(dtype).tolist())
    if thread.polled is None:
        thread.polled = {}
    place = id(array.data), int(index)
    count_poll(thread, changed=thread.polled.get(place) != value)
    thread.polled[place] = value
    return value
