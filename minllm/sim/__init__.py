"""The SIMT simulator: runs kernels on the CPU, one greenlet a CUDA thread.

    from minllm.sim import simulate
    simulate(kernel, grid, block, *numpy_arrays, shared_bytes=0)

takes a kernel of this package, any `@cuda.jit` dispatcher or a plain function, and runs it unmodified in this process, GPU or not.
"""

from minllm.sim.detectors import detecting, unwritten
from minllm.sim.simulator import simulate

__all__ = ["detecting", "simulate", "unwritten"]
