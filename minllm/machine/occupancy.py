"""How many blocks of a kernel share a multiprocessor: the arithmetic of NVIDIA's occupancy calculator.

A block becomes resident when a multiprocessor has room for all of it: a slot, its warps, its registers, its shared memory. Registers are
given out to warps in units of 256, from the file of the quarter in which the warp runs; shared memory in units of 128 bytes, one
KiB of which the system keeps for itself in every block. Whichever runs out first is the limit. Occupancy is the share of the warp slots
that are filled: more warps hide more latency, until something else is the limit.

Sources: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications; the rules of allocation are those of
cuda_occupancy.h, which the CUDA toolkit carries (a test compares this file with it).
"""

from dataclasses import dataclass

from minllm.errors import InvalidOptionError

WARP = 32
REGISTERS = 65_536  # 32-bit registers of a multiprocessor, of every generation since Kepler
REGISTERS_A_THREAD = 255
REGISTER_UNIT = 256  # registers that a warp is given at a time: 8 a thread
QUARTERS = 4  # of a multiprocessor, each with its scheduler and a quarter of the registers
SHARED_UNIT = 128
THREADS_A_BLOCK = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """Slots for warps and for blocks, KiB of shared memory in all, and how many of them the system takes for itself in each block."""

    warps: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1

    @property
    def block_shared_bytes(self) -> int:
        """The most shared memory that one block can have."""
        return (self.shared_kib - self.reserved_kib) * 1024


MULTIPROCESSORS: dict[tuple[int, int], Multiprocessor] = {
    (7, 5): Multiprocessor(warps=32, blocks=16, shared_kib=64, reserved_kib=0),
    (8, 0): Multiprocessor(warps=64, blocks=32, shared_kib=164),
    (8, 6): Multiprocessor(warps=48, blocks=16, shared_kib=100),
    (8, 7): Multiprocessor(warps=48, blocks=16, shared_kib=164),
    (8, 9): Multiprocessor(warps=48, blocks=24, shared_kib=100),
    (9, 0): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (10, 0): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (10, 3): Multiprocessor(warps=64, blocks=32, shared_kib=228),
    (12, 0): Multiprocessor(warps=48, blocks=24, shared_kib=100),
}


@dataclass(frozen=True)
class Occupancy:
    """blocks: resident at one time on a multiprocessor; warps: of them all; share: of its warp slots; limits: blocks by each resource."""

    blocks: int
    warps: int
    share: float
    limits: dict[str, int]

    @property
    def limited_by(self) -> list[str]:
        """The resources that run out first."""
        return [name for name, blocks in self.limits.items() if blocks == self.blocks]


def multiprocessor_of(compute_capability: tuple[int, int]) -> Multiprocessor:
    """What a multiprocessor of this compute capability has. Raises InvalidOptionError for one that is not in the table."""
    if compute_capability not in MULTIPROCESSORS:
        known = ", ".join(f"{major}.{minor}" for major, minor in MULTIPROCESSORS)
        major, minor = compute_capability
        raise InvalidOptionError(f"the limits of compute capability {major}.{minor} are not known here; choose one of {known}")
    return MULTIPROCESSORS[compute_capability]


def occupancy(compute_capability: tuple[int, int], threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of blocks of `threads` threads with `registers` registers each and `shared_bytes` (static and dynamic) in all.

    0 blocks where a single block does not fit. Kernels with several named barriers a block may be limited by those; they are not counted.
    """
    has = multiprocessor_of(compute_capability)
    warps = -(-threads // WARP)
    reserved = round_up(shared_bytes + has.reserved_kib * 1024, SHARED_UNIT)
    limits = {
        "blocks": has.blocks if 0 < threads <= THREADS_A_BLOCK else 0,
        "warps": has.warps // warps if warps else 0,
        "registers": blocks_by_registers(warps, registers),
        "shared memory": has.shared_kib * 1024 // reserved if reserved else has.blocks,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, blocks * warps / has.warps, limits)


def blocks_by_registers(warps: int, registers: int) -> int:
    """How many blocks of `warps` warps the register file holds; the launch is refused where one does not fit, spread over all quarters."""
    a_warp = round_up(registers * WARP, REGISTER_UNIT)
    if not warps or not 0 < registers <= REGISTERS_A_THREAD or a_warp * round_up(warps, QUARTERS) > REGISTERS:
        return 0
    return REGISTERS // QUARTERS // a_warp * QUARTERS // warps


def registers_for(warps: int) -> int:
    """The most registers a thread with which `warps` warps are resident on a multiprocessor."""
    a_warp = REGISTERS // QUARTERS // -(-warps // QUARTERS)
    return min(a_warp // REGISTER_UNIT * REGISTER_UNIT // WARP, REGISTERS_A_THREAD)


def round_up(number: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-number // unit) * unit
