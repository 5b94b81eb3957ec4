"""The types of a simulated kernel, by Numba's rules.

A kernel's Python code has other types than the same code compiled: Python's ints have any size, and the sum of a float32 and an int is
float32 in NumPy but float64 in Numba. So before a kernel runs, its types are inferred from the types of its arguments, by looking up every
operator, call and attribute in Numba's typing context (rules.py). The code is unchanged, except for casts wherever Python would compute
something else (source.py). No compiler is needed.

    infer_kernel(function, argument_types)      the Inference of a kernel: its casts, and those of its device functions
"""

from minllm.sim.typing.functions import infer_kernel
from minllm.sim.typing.rules import argument_type

__all__ = ["argument_type", "infer_kernel"]
