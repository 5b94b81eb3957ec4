"""A specimen: one kernel as its launcher launches it, with the machine-code properties that its design assumes.

Compiling needs no GPU, so every assumption can be checked anywhere: nothing spills, the registers leave room for the designed number of
blocks per SM (streaming multiprocessor), the wide loads and tensor-core instructions are present, and no literal has introduced float64.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minllm.machine.numba_cuda import types
from minllm.machine.occupancy import WARP, registers_for

DTYPES = {"float32": types.float32, "float16": types.float16, "bfloat16": types.bfloat16}
INT32, FLOAT32, UINT8, UINT32 = types.int32, types.float32, types.uint8, types.uint32
# Compute capabilities for which every kernel is compiled: Ampere, Ada, Hopper, Blackwell.
TARGETS = ((8, 0), (8, 9), (9, 0), (10, 0))
FP8_TARGETS = tuple(target for target in TARGETS if target >= (8, 9))  # with instructions that convert from and to fp8


@dataclass(frozen=True)
class Specimen:
    """A kernel to compile, and the expected properties of its machine code.

    name: stage/variant/details. kernel, arguments: the kernel, and the types of its arguments. threads: per block. shared_bytes: dynamic
    shared memory per block. blocks: designed number of blocks per SM, which determines the register budget. contains: patterns (as for file
    names) of instructions that must be in the machine code. float64: the reason for float64 arithmetic, empty if there must be none.
    spills: {target: bytes per thread} accepted if ptxas narrowly misses the budget; none for other targets. targets: compute capabilities.
    """

    name: str
    kernel: Any
    arguments: tuple
    threads: int
    blocks: int
    shared_bytes: int = 0
    contains: tuple[str, ...] = ()
    float64: str = ""
    spills: Mapping[tuple[int, int], int] = field(default_factory=dict)
    targets: tuple[tuple[int, int], ...] = TARGETS

    @property
    def registers(self) -> int:
        """The register budget: the most registers per thread with which `blocks` of these blocks fit on an SM."""
        return registers_for(self.blocks * -(-self.threads // WARP))

    def compile(self, compute_capability):
        """The CompiledKernel for one target, from the disk cache if it is there."""
        return self.kernel.compile(*self.arguments, compute_capability=compute_capability)


def array(dtype, rank, gaps=False):
    """The Numba type of an array, C-contiguous or with gaps; dtype is a Numba type, or one of "float32", "float16", "bfloat16"."""
    return types.Array(DTYPES.get(dtype, dtype), rank, "A" if gaps else "C")
