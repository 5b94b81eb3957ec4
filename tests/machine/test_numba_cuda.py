"""numba-cuda compiles under every NumPy that pyproject.toml allows."""

import subprocess
import sys

# NumPy 2.5 has no row_stack; without it an older NumPy stands for that one.
COMPILE = """
import numpy as np
vars(np).pop("row_stack", None)
from numba import cuda
from minllm.machine.numba_cuda import types
from minllm.runtime.kernel import kernel

@kernel
def double(x):
    x[0] *= 2

print(double.compile(types.float32[::1]).spill_bytes)
"""


def test_a_kernel_compiles_under_a_numpy_without_row_stack(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(COMPILE)
    run = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, "0"), run.stderr
