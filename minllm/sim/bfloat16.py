"""NumPy's type of bfloat16 numbers, from ml_dtypes if that is installed.

Without it the simulator runs every kernel that does not compute in bfloat16.
"""

from minllm.errors import SimulationError

try:
    from ml_dtypes import bfloat16
except ImportError:

    class bfloat16:
        """A stand-in, of which there are no numbers."""

        def __new__(cls, *value):
            raise SimulationError("bfloat16 numbers need the package ml_dtypes, which is not installed: pip install ml_dtypes")
