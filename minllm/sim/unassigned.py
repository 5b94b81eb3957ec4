"""Variables without a value that take part in a shuffle: `if i < n: v = x[i]` and then `cuda.shfl_down_sync(mask, v, 1)` by all lanes.

A GPU shuffles whatever the register holds, and the kernel is right if it does not use what these lanes gave. So they give 0, which a
detector follows (detectors/undefined.py).
"""

import sys

from minllm.sim.place import instruction, kernel_frame
from minllm.sim.thread import current_thread


def unassigned(cast, name):
    """The number that a lane gives for the variable `name`, to which nothing has been assigned. cast: of the variable's type."""
    value, monitor = cast(0), current_thread().block.monitor
    if monitor is None:
        return value
    why, place = f"the variable {name!r}, to which this thread assigns nothing", instruction(kernel_frame(sys._getframe(1)))
    found = monitor.undefined(value, why, place)
    return value if found is None else found
