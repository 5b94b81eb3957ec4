"""How a small kernel of a decode step begins when it may be launched before its predecessor has ended (`@kernel(dependent_launch=True)`).

Between two kernels of a stream a GPU is idle for a microsecond or two: the last blocks end, the next kernel's are set up. A kernel that
allows it is set up in its predecessor's shadow, and waits only where it begins to read what others wrote.
"""

from numba import cuda

from minllm.ptx import griddepcontrol_launch_dependents, griddepcontrol_wait


@cuda.jit(device=True)
def wait_for_predecessors():
    """Let the next kernel be set up from now on; then wait until all that was launched before has ended and its writes are visible."""
    griddepcontrol_launch_dependents()
    griddepcontrol_wait()
