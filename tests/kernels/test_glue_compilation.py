"""The small kernels compile for every dtype and keep everything in registers: no spill, no stack, and the wide loads as written."""

import pytest

from tests.kernels.glue_compilations import compilations
from tests.kernels.guarded import BFLOAT16, DTYPES


@pytest.fixture(scope="module", autouse=True)
def toolkit():
    """Skip where the compiler's libraries are not installed: the simulator tests need none of them."""
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda.pathfinder is not installed: nothing can be compiled for a GPU")
    for library in ("nvvm", "nvrtc", "nvJitLink"):
        try:
            pathfinder.load_nvidia_dynamic_lib(library)
        except Exception as error:
            pytest.skip(f"{library} of the CUDA toolkit is not installed, and kernels cannot be compiled without it: {error}")


# The registers hardly depend on the architecture; one dtype shows that nothing newer than compute capability 8.0 is used.
TARGETS = [((9, 0), dtype) for dtype in DTYPES] + [((8, 0), BFLOAT16)]


@pytest.mark.parametrize("compute_capability, dtype", TARGETS, ids=str)
@pytest.mark.parametrize("name", compilations(BFLOAT16))
def test_everything_stays_in_registers(name, compute_capability, dtype, record_property):
    kernel, arguments = compilations(dtype)[name]
    compiled = kernel.compile(*arguments, compute_capability=compute_capability)
    record_property("registers", compiled.registers)
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert compiled.registers <= 64  # 1,024 threads of 64 registers are all that a multiprocessor has
