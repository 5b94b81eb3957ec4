"""The SIMT simulator runs kernels on the CPU: all threads of a block as lanes of NumPy vectors, or thread by thread in greenlets.

    from minllm.sim import simulate
    simulate(kernel, grid, block, *numpy_arrays, shared_bytes=0)

The kernel is a minllm kernel, any `@cuda.jit` dispatcher or a plain function; it runs unmodified in this process and needs no GPU.
With `detect=True`, or inside `detecting()`, detectors also find races, reads of unwritten memory and more (minllm.sim.detectors).
`engine="threads"`, or `using_engine("threads")`, asks for threads alone (minllm.sim.engines).
`simulate_ranks` launches a kernel on several GPUs at once.
`trace(...)` takes the same arguments and returns counts of bytes, sectors, conflicts and FLOPs; within `tracing()` every launch is traced.
Within `simulated_launches()`, and so in a whole program under `python -m minllm.sim`, `kernel[grid, block](...)` is simulated.

The simulator needs Numba's CUDA target, NumPy and greenlet, and nothing else of what minllm requires.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minllm.sim.detectors import detecting, output, unwritten
    from minllm.sim.engines import using_engine
    from minllm.sim.numba_launches import simulated_launches
    from minllm.sim.ranks import simulate_ranks
    from minllm.sim.simulator import simulate
    from minllm.sim.tracer import trace, tracing

__all__ = ["detecting", "output", "simulate", "simulate_ranks", "simulated_launches", "trace", "tracing", "unwritten", "using_engine"]

_HOMES = {
    **dict.fromkeys(("detecting", "output", "unwritten"), "minllm.sim.detectors"),
    **dict.fromkeys(("trace", "tracing"), "minllm.sim.tracer"),
    "simulate": "minllm.sim.simulator",
    "simulate_ranks": "minllm.sim.ranks",
    "simulated_launches": "minllm.sim.numba_launches",
    "using_engine": "minllm.sim.engines",
}


def __getattr__(name: str):
    """Import a public name at its first use: pytest imports the plugin in this package at every start, and most runs simulate nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minllm.sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
