"""The names of Numba's CUDA target that minllm uses, from numba-cuda or, if that is not installed, from Numba itself.

numba-cuda compiles kernels, but has no wheels for macOS. Numba has its own, older numba.cuda with the decorators, stubs and typing that the
simulator needs, but without a type for bfloat16. `from numba import cuda` imports the one that is installed.

Numba's own simulator, which NUMBA_ENABLE_CUDASIM=1 puts in the place of all of this, is off once this module is imported.
"""

import contextlib
import importlib.util
import sys
import types as python_types

import numpy as np
from numba.core import config

from minllm.errors import SimulationError

if "numba.cuda.simulator_init" in sys.modules:
    raise SimulationError(
        "numba.cuda has been imported with Numba's own simulator, because NUMBA_ENABLE_CUDASIM is set: unset it, or run the program with "
        "`python -m minllm.sim`"
    )
config.ENABLE_CUDASIM = 0  # Numba reads the variable again only after a change of the environment

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30.4 looks the name up when it first compiles, and NumPy 2.5 has removed it.
    np.row_stack = np.vstack

HAS_NUMBA_CUDA = importlib.util.find_spec("numba_cuda") is not None

if HAS_NUMBA_CUDA:
    from numba.cuda import types
    from numba.cuda.cgutils import unpack_tuple
    from numba.cuda.core.sigutils import normalize_signature
    from numba.cuda.extending import _Intrinsic, intrinsic
    from numba.cuda.np.numpy_support import as_dtype, from_dtype
    from numba.cuda.typing.typeof import Purpose, typeof
    from numba.cuda.utils import numba_target_override
else:
    from numba.core import types as core_types
    from numba.core.cgutils import unpack_tuple
    from numba.core.extending import _Intrinsic
    from numba.core.sigutils import normalize_signature
    from numba.core.typing.typeof import Purpose, typeof
    from numba.cuda.extending import intrinsic
    from numba.np.numpy_support import as_dtype, from_dtype

    class Bfloat16(core_types.Number):
        """The Numba type of bfloat16 numbers."""

        def __init__(self):
            super().__init__(name="bfloat16")
            self.bitwidth = 16

    types = python_types.SimpleNamespace(**vars(core_types), bfloat16=Bfloat16())
    numba_target_override = contextlib.nullcontext

__all__ = [
    "HAS_NUMBA_CUDA",
    "Purpose",
    "_Intrinsic",
    "as_dtype",
    "from_dtype",
    "intrinsic",
    "normalize_signature",
    "numba_target_override",
    "typeof",
    "types",
    "unpack_tuple",
]
