"""The SIMT simulator runs kernels on the CPU: all threads of a block as lanes of NumPy vectors, or thread by thread in greenlets.

    from minllm.sim import simulate
    simulate(kernel, grid, block, *numpy_arrays, shared_bytes=0)

The kernel is a minllm kernel, any `@cuda.jit` dispatcher or a plain function; it runs unmodified in this process and needs no GPU.
With `detect=True`, or inside `detecting()`, detectors also find races, reads of unwritten memory and more (minllm.sim.detectors).
`engine="threads"`, or `using_engine("threads")`, asks for threads alone (minllm.sim.engines).
`simulate_ranks` launches a kernel on several GPUs at once.
`trace(...)` takes the same arguments and returns counts of bytes, sectors, conflicts and FLOPs; within `tracing()` every launch is traced.
"""

from minllm.sim.detectors import detecting, output, unwritten
from minllm.sim.engines import using_engine
from minllm.sim.ranks import simulate_ranks
from minllm.sim.simulator import simulate
from minllm.sim.tracer import trace, tracing

__all__ = ["detecting", "output", "simulate", "simulate_ranks", "trace", "tracing", "unwritten", "using_engine"]
