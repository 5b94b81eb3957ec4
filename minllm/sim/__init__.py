"""The SIMT simulator: runs kernels on the CPU, one greenlet a CUDA thread.

    from minllm.sim import simulate
    simulate(kernel, grid, block, *numpy_arrays, shared_bytes=0)

takes a kernel of this package, any `@cuda.jit` dispatcher or a plain function, and runs it unmodified in this process, GPU or not.
With `detect=True`, or inside `detecting()`, detectors also find races, reads of memory nobody wrote and more (minllm.sim.detectors).
`trace(...)` takes the same and gives what the kernel did, in numbers; `tracing()` does so for every launch within it.
"""

from minllm.sim.detectors import detecting, unwritten
from minllm.sim.simulator import simulate
from minllm.sim.tracer import trace, tracing

__all__ = ["detecting", "simulate", "trace", "tracing", "unwritten"]
