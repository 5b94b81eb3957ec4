"""Programmatic dependent launch: a kernel may be launched before its predecessor ends.

`@kernel(dependent_launch=True)` enables it for a kernel. Between two kernels of a stream a GPU is idle for a microsecond or two, while the
last blocks end and the next kernel is set up. With dependent launch this setup overlaps with the predecessor, and the kernel waits only
before it reads the results of other kernels.
"""

from numba import cuda

from minllm.ptx import griddepcontrol_launch_dependents, griddepcontrol_wait


@cuda.jit(device=True)
def wait_for_predecessors():
    """Allow the next kernel to be set up; then wait until all earlier kernels have ended and their writes are visible."""
    griddepcontrol_launch_dependents()
    griddepcontrol_wait()
