"""Resident blocks per SM: the arithmetic of NVIDIA's occupancy calculator.

A block becomes resident when the SM (streaming multiprocessor) has a free block slot and enough warp slots, registers and shared memory
for the whole block. Registers are allocated per warp in units of 256, from the register file of the SM's quarter in which the warp runs.
Shared memory is allocated in units of 128 bytes (256 before compute capability 8.0); since 8.0 CUDA reserves 1 KiB of it per block. The
resource that runs out first is the limit. Occupancy is the share of warp slots that are filled: more warps hide more latency, until
something else is the limit.

Sources: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications; cuda_occupancy.h of the CUDA toolkit,
for the rules of allocation (a test compares this file with it).
"""

from dataclasses import dataclass

from minllm.errors import InvalidOptionError

WARP = 32
REGISTERS = 65_536  # 32-bit registers per SM, in every generation since Kepler
REGISTERS_PER_THREAD = 255  # largest number of registers per thread
REGISTER_UNIT = 256  # registers per warp are a multiple of this: 8 per thread
QUARTERS = 4  # parts of an SM, each with a warp scheduler and a quarter of the registers
THREADS_PER_BLOCK = 1024  # largest number of threads per block


@dataclass(frozen=True)
class Multiprocessor:
    """The resources of one SM of a GPU generation."""

    warps: int  # warp slots
    blocks: int  # block slots
    shared_kib: int  # shared memory in KiB
    reserved_kib: int = 1  # shared memory in KiB that CUDA reserves per block
    shared_unit: int = 128  # bytes; a block's shared memory is a multiple of this

    @property
    def block_shared_bytes(self) -> int:
        """The most shared memory that one block can use, in bytes."""
        return (self.shared_kib - self.reserved_kib) * 1024


MULTIPROCESSORS: dict[tuple[int, int], Multiprocessor] = {
    (7, 5): Multiprocessor(warps=32, blocks=16, shared_kib=64, reserved_kib=0, shared_unit=256),
    (8, 0): Multiprocessor(warps=64, blocks=32, shared_kib=164),
    (8, 6): Multiprocessor(warps=48, blocks=16, shared_kib=100),
    (8, 7): Multiprocessor(warps=48, blocks=16, shared_kib=164),
    (8, 9): Multiprocessor(warps=48, blocks=24, shared_kib=100),
    (9, 0): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (10, 0): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (10, 3): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (12, 0): Multiprocessor(warps=48, blocks=24, shared_kib=100),
    (12, 1): Multiprocessor(warps=48, blocks=24, shared_kib=100),
}


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of an SM by blocks of one kernel."""

    blocks: int  # resident blocks
    warps: int  # warps of these blocks
    share: float  # filled share of the warp slots, 0 to 1
    limits: dict[str, int]  # resource -> number of blocks for which it suffices

    @property
    def limited_by(self) -> list[str]:
        """The names of the resources that run out first."""
        return [name for name, blocks in self.limits.items() if blocks == self.blocks]


def multiprocessor_of(compute_capability: tuple[int, int]) -> Multiprocessor:
    """The Multiprocessor of a compute capability. Raises InvalidOptionError if it is not in MULTIPROCESSORS."""
    if compute_capability not in MULTIPROCESSORS:
        known = ", ".join(f"{major}.{minor}" for major, minor in MULTIPROCESSORS)
        major, minor = compute_capability
        raise InvalidOptionError(f"the limits of compute capability {major}.{minor} are not known here; choose one of {known}")
    return MULTIPROCESSORS[compute_capability]


def occupancy(compute_capability: tuple[int, int], threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The Occupancy of a kernel, by threads per block, registers per thread and bytes of shared memory per block.

    It has 0 blocks if a single block does not fit. The named barriers of an SM can be a limit too, but are not counted.
    """
    has = multiprocessor_of(compute_capability)
    warps = -(-threads // WARP)
    reserved = round_up(shared_bytes + has.reserved_kib * 1024, has.shared_unit)
    limits = {
        "blocks": has.blocks if 0 < threads <= THREADS_PER_BLOCK else 0,
        "warps": has.warps // warps if warps else 0,
        "registers": blocks_by_registers(warps, registers),
        "shared memory": has.shared_kib * 1024 // reserved if reserved else has.blocks,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, blocks * warps / has.warps, limits)


def blocks_by_registers(warps: int, registers: int) -> int:
    """The number of blocks of `warps` warps for which the registers suffice; registers: per thread."""
    per_warp = round_up(registers * WARP, REGISTER_UNIT)
    if not warps or not 0 < registers <= REGISTERS_PER_THREAD or per_warp * round_up(warps, QUARTERS) > REGISTERS:
        return 0
    return REGISTERS // QUARTERS // per_warp * QUARTERS // warps


def registers_for(warps: int) -> int:
    """The most registers per thread with which `warps` warps are resident on an SM."""
    per_warp = REGISTERS // QUARTERS // -(-warps // QUARTERS)
    return min(per_warp // REGISTER_UNIT * REGISTER_UNIT // WARP, REGISTERS_PER_THREAD)


def round_up(number: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `number`."""
    return -(-number // unit) * unit
