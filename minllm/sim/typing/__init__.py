"""The types of a simulated kernel, by Numba's rules.

A kernel's Python code has other types than the same code compiled: Python's ints have any size, and NumPy takes float32 for the sum of a
float32 and an int, where Numba takes float64. So before a kernel runs, its types are inferred for the types of its arguments, by asking
Numba's typing context about every operator, call and attribute (rules.py). The code stays as it is, except for casts at places where Python
would compute something else (source.py). No compiler is needed.

    infer_kernel(function, argument_types)      the Inference of a kernel: its casts, and those of its device functions
"""

from minllm.sim.typing.functions import infer_kernel
from minllm.sim.typing.rules import argument_type

__all__ = ["argument_type", "infer_kernel"]
