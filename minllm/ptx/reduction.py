"""redux.sync: one instruction that reduces a word over the lanes of a warp. PTX ISA, "redux.sync"."""

from minllm.ptx.instruction import instruction
from minllm.sim.machine import collective


def redux_sync_max_u32(value, mask):
    """redux_sync_max_u32(value, mask) -> uint32: the largest value of the lanes of `mask`, in each of them. From compute capability 8.0
    on. PTX ISA, "redux.sync", .max."""
    return collective("redux", int(value), lambda values: dict.fromkeys(values, max(values.values())), mask)


redux_sync_max_u32 = instruction("redux.sync.max.u32 $0, $1, $2;", "r", "rr", emulation=redux_sync_max_u32, convergent=True)
