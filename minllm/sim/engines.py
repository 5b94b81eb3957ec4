"""Which engine runs a simulated launch: threads, or the lanes of NumPy vectors.

    simulate(kernel, grid, block, *arrays, engine="lanes")
    with using_engine("threads"): ...

The environment variable MINLLM_SIM_ENGINE names the engine outside of such a context. The engines compute the same bits. Threads run every
kernel, one instruction of one thread after the other, under every monitor. Lanes run a whole block, or several, at once, 5 to 200 times
as fast, and make the same traces; a launch that they have no form of, or that another monitor observes, runs in threads.
"""

import contextlib
import contextvars
import os
from collections import Counter

from minllm.errors import SimulationError

ENGINES = ("lanes", "threads")
DEFAULT = "lanes"
VARIABLE = "MINLLM_SIM_ENGINE"

_engine = contextvars.ContextVar("engine", default=None)
launches = Counter()  # (kernel's name, why it ran in threads; None: it ran in lanes) -> launches for which the lanes were asked


def checked_engine(name):
    """The name of an engine. Raises SimulationError for another one."""
    if name not in ENGINES:
        raise SimulationError(f"engine {name!r}; the simulator has {' and '.join(map(repr, ENGINES))}")
    return name


def chosen_engine(name=None):
    """The engine that a launch asks for: `name`, or that of the context, or that of the environment."""
    return checked_engine(name or _engine.get() or os.environ.get(VARIABLE) or DEFAULT)


@contextlib.contextmanager
def using_engine(name):
    """Within this context simulations run in this engine by default: "lanes" or "threads"."""
    token = _engine.set(checked_engine(name))
    try:
        yield
    finally:
        _engine.reset(token)
