"""Machine code of kernels that tests make: nothing of the vocabulary is left in it but instructions."""

import pytest

from minllm.machine.devices import missing_compilers
from minllm.runtime.machine_code import sass_of_all


def unwanted(kernels, *types, compute_capability=(8, 0)):
    """Calls, and accesses to local memory, that the compiler left in kernels; skips where there is no compiler."""
    if missing := missing_compilers():
        pytest.skip(f"{', '.join(missing)} of the CUDA toolkit cannot be loaded")
    made = [kernel.compile(*types, compute_capability=compute_capability) for kernel in kernels]
    return [line for sass in sass_of_all(made) for line in sass if any(word in line for word in ("CALL", "STL", "LDL"))]
