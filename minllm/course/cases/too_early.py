"""Two consecutive kernels, the second launched to overlap the first; it adds numbers of the previous step."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import griddepcontrol_launch_dependents, griddepcontrol_wait
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK = 32


@kernel
def hidden_kernel(x, hidden):
    """hidden = 2 * x, one thread per element: the preceding kernel. It is right."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        hidden[i] = float32(2.0) * x[i]


@kernel(dependent_launch=True)
def scale_kernel(hidden, weight, out):
    """out = hidden * weight, one thread per element; its blocks are set up while the preceding kernel still runs."""
    griddepcontrol_launch_dependents()  # the next kernel may be set up, too
    i = cuda.grid(1)
    if i < out.shape[0]:
        scaled = hidden[i] * weight[i]
        griddepcontrol_wait()  # all earlier kernels have ended
        out[i] = scaled


@kernel(dependent_launch=True)
def mended_kernel(hidden, weight, out):
    """The same, but only the weight, which no kernel writes, is loaded before the wait."""
    griddepcontrol_launch_dependents()
    i = cuda.grid(1)
    factor = weight[i] if i < out.shape[0] else float32(0.0)
    griddepcontrol_wait()
    if i < out.shape[0]:
        out[i] = hidden[i] * factor


def examine(kernel):
    """Both kernels, on 40 elements."""
    x, weight = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
    hidden, out = unwritten((40,), np.float32), unwritten((40,), np.float32)
    hidden_kernel.simulate[2, BLOCK](x, hidden)
    kernel.simulate[2, BLOCK](hidden, weight, out)
    expect("out", out, 2 * x.astype(np.float64) * weight)


CASE = Case(
    name="too_early",
    lesson=15,
    title="The numbers of the step before",
    story="To save a few microseconds per step, small kernels are launched so that they overlap their predecessors. Every kernel passes "
    "its tests. Now the engine sometimes writes a word twice, and only when steps are replayed from a graph. With a profiler "
    "attached, which runs kernels one after another, all is well.",
    hint="Which of the three arrays does another kernel write, and when does this kernel read it?",
    broken=scale_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="scaled = hidden[i] * weight[i]",
    solution="A kernel that is launched this way may run while the one before it still does. Until it has waited it may load only what "
    "no kernel before it writes: weights, tables, addresses. Here it reads `hidden` first and waits afterwards, so the wait "
    "comes too late, and protects a store that needed less protection than the load. If the predecessor was slow, the numbers "
    "are those of the last step: nearly right, which is the worst kind of wrong. The simulator runs kernels one after "
    "another, so the result is right there; but it remembers which arrays earlier launches wrote, and reports who reads one "
    "of them before the wait.",
)
