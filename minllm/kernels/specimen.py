"""A specimen: one kernel as a launcher would launch it, with what its design assumes of the machine code.

Compiling it needs no GPU, so that every assumption can be held against the truth anywhere: that nothing spills, that the registers leave
room for as many blocks as the design wants on a multiprocessor, that the wide loads and the tensor cores are really there, and that no
float64 slipped in with a literal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numba.cuda import types

from minllm.machine.occupancy import WARP, registers_for

DTYPES = {"float32": types.float32, "float16": types.float16, "bfloat16": types.bfloat16}
INT32, FLOAT32, UINT8, UINT32 = types.int32, types.float32, types.uint8, types.uint32
# The generations that every kernel is compiled for: Ampere, Ada, Hopper, Blackwell.
TARGETS = ((8, 0), (8, 9), (9, 0), (10, 0))


@dataclass(frozen=True)
class Specimen:
    """name: stage/variant/details. kernel, arguments: what is compiled, for arguments of these types.

    threads: of a block. shared_bytes: dynamic shared memory of a block. blocks: how many of them the design wants on a multiprocessor at
    one time, from which follows the budget of registers. contains: patterns (as of file names) of instructions that must be in the
    machine code. float64: why there may be float64 arithmetic, empty where there must be none. spills: {target: bytes a thread} that are
    accepted where ptxas misses the budget by a hair, none for others. targets: compute capabilities.
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
        """The budget: the most registers a thread with which `blocks` of these blocks share a multiprocessor."""
        return registers_for(self.blocks * -(-self.threads // WARP))

    def compile(self, compute_capability):
        """The machine code for one target, from the disk cache where it is there -> CompiledKernel."""
        return self.kernel.compile(*self.arguments, compute_capability=compute_capability)


def array(dtype, rank, gaps=False):
    """The type of an array, C-contiguous or with gaps; dtype is a Numba type, or one of "float32", "float16", "bfloat16"."""
    return types.Array(DTYPES.get(dtype, dtype), rank, "A" if gaps else "C")
