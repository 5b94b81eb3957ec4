"""The numbers of a trace in dataclasses, for tables, tests and JSON."""

import json
from dataclasses import asdict, dataclass, field

from minllm.sim.traffic import SECTOR_BYTES, LaneAccess


@dataclass
class Traffic:
    """Accesses of one kind to one global array. A request is one instruction of one warp.

    bytes: bytes requested, summed over lanes. sectors: sectors of 32 bytes, each counted once per request.
    unique_bytes: distinct bytes accessed during the whole launch, the traffic that no cache can avoid.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    unique_bytes: int = 0

    @property
    def sector_bytes(self):
        """Bytes moved if nothing is cached."""
        return self.sectors * SECTOR_BYTES

    @property
    def sectors_per_request(self):
        """A measure of coalescing: 4 for neighbouring float32, 16 for neighbouring 16-byte vectors, 32 for scattered lanes."""
        return self.sectors / self.requests if self.requests else 0.0

    def __add__(self, other):
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass
class ArrayTraffic:
    """All accesses to one global array; name: the kernel's argument."""

    name: str
    array_bytes: int
    read: Traffic = field(default_factory=Traffic)
    write: Traffic = field(default_factory=Traffic)
    atomic: Traffic = field(default_factory=Traffic)

    @property
    def total(self):
        """Reads, writes and atomics together; a byte that is read and written counts as two unique bytes."""
        return self.read + self.write + self.atomic


@dataclass
class SharedLine:
    """Accesses of one source line to shared memory.

    turns (wavefronts in Nsight Compute): passes over the banks; least: turns if there were no bank conflicts; worst: the degree of the
    worst conflict, the number of different words in one bank (32 is a "32-way conflict", 1 is none).
    """

    place: str
    line: int
    array: str
    kind: str
    requests: int = 0
    bytes: int = 0
    turns: int = 0
    least: int = 0
    worst: int = 1

    @property
    def conflicts(self):
        """Turns beyond the minimum."""
        return self.turns - self.least


@dataclass
class PartialLine:
    """A source line that only some lanes of a warp executed.

    Divergence is counted only at memory accesses, not at branches around arithmetic alone, because lanes run one after the other here and
    report nothing between accesses.
    """

    place: str
    line: int
    requests: int = 0
    partial: int = 0


@dataclass
class Request:
    """The first request of a source line, as an example: the bytes that each lane accessed."""

    place: str
    line: int
    space: str
    array: str
    kind: str
    lanes: list[LaneAccess]


@dataclass
class CopyGroup:
    """One group of asynchronous copies of a warp, or one bulk copy.

    issued: the step in which it was issued; arrived: the first step that has its data, None if no thread waited. A new step begins at each
    wait of the traced lane, or for bulk copies at an arrival. copies, bytes: of one lane.
    """

    number: int
    issued: int
    arrived: int | None
    copies: int
    bytes: int
    address: int
    line: int


@dataclass
class StageRound:
    """One round of one stage of a pipeline of bulk copies: bytes, the line that copied them, and moments (trace_stages.py).

    issued: when the first copy was issued; arrived: when the last one arrived; used, done: the first and last use. None: it did not happen.
    """

    stage: int
    round: int
    bytes: int
    line: int
    issued: int
    arrived: int | None = None
    used: int | None = None
    done: int | None = None


@dataclass
class Trace:
    """The counts of one launch, from `kernel.trace[grid, block](*arrays)` or `minllm.sim.trace`.

    arrays: traffic to global memory by argument. shared: traffic to shared memory by source line. flops: counted operations by kind.
    collectives: warp-wide instructions by name. barriers: block barriers, once per block. partial: lines that parts of warps executed.
    pipeline: the copy groups of the first warp that started any (of the first block, for bulk copies); step_flops: its tensor-core
    FLOPs per step. stages: the rounds of a pipeline's stages in the first block that has one; moments: the number of moments in them.

    Accesses are counted as in the source; a compiler may merge some, but adds none. wgmma's reads of shared memory count no turns.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arrays: dict[str, ArrayTraffic] = field(default_factory=dict)
    shared: list[SharedLine] = field(default_factory=list)
    flops: dict[str, int] = field(default_factory=dict)
    collectives: dict[str, int] = field(default_factory=dict)
    barriers: int = 0
    partial: list[PartialLine] = field(default_factory=list)
    examples: list[Request] = field(default_factory=list)
    pipeline: list[CopyGroup] = field(default_factory=list)
    step_flops: list[int] = field(default_factory=list)
    stages: list[StageRound] = field(default_factory=list)
    moments: int = 0

    @property
    def total(self):
        """Traffic of all global arrays."""
        return sum((array.total for array in self.arrays.values()), Traffic())

    @property
    def bank_conflicts(self):
        """Turns of shared memory beyond the minimum, over all lines."""
        return sum(line.conflicts for line in self.shared)

    @property
    def tensor_core_flops(self):
        """FLOPs of matrix instructions."""
        return sum(count for name, count in self.flops.items() if "mma" in name)

    @property
    def total_flops(self):
        """All counted FLOPs."""
        return sum(self.flops.values())

    @property
    def arithmetic_intensity(self):
        """FLOPs per byte of moved sectors: the arithmetic intensity if nothing is cached."""
        return self.total_flops / self.total.sector_bytes if self.total.sectors else 0.0

    @property
    def best_arithmetic_intensity(self):
        """FLOPs per unique byte: the arithmetic intensity with perfect caches."""
        return self.total_flops / self.total.unique_bytes if self.total.unique_bytes else 0.0

    def to_dict(self):
        """Everything, derived numbers included, as dicts, lists, strings and numbers."""
        found = asdict(self)
        for name, array in self.arrays.items():
            for kind in ("read", "write", "atomic"):
                traffic = getattr(array, kind)
                found["arrays"][name][kind] |= dict(sector_bytes=traffic.sector_bytes, sectors_per_request=traffic.sectors_per_request)
        for line, entry in zip(self.shared, found["shared"]):
            entry["conflicts"] = line.conflicts
        found["total"] = asdict(self.total) | dict(sector_bytes=self.total.sector_bytes)
        names = ("bank_conflicts", "tensor_core_flops", "total_flops", "arithmetic_intensity", "best_arithmetic_intensity")
        return found | {name: getattr(self, name) for name in names}

    def to_json(self, indent=None):
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self):
        from minllm.sim.trace_table import text

        return text(self)

    def access_map(self, array, line=None, kind=None):
        """A Picture of the first matching request to a global array: lanes, bytes and sectors."""
        from minllm.sim.trace_pictures import access_map

        return access_map(self.example("global", array, line, kind))

    def bank_map(self, array="", line=None, kind=None):
        """A Picture of the first matching request to shared memory: lanes, banks and turns."""
        from minllm.sim.trace_pictures import bank_map

        return bank_map(self.example("shared", array, line, kind))

    def timeline(self):
        """A Picture of the pipeline: copies in flight, above the FLOPs of each step."""
        from minllm.sim.trace_pictures import timeline

        return timeline(self)

    def stage_timeline(self):
        """A Picture of a pipeline's stages: when each is being filled, full, in use or free. Raises ValueError if there are none."""
        from minllm.sim.stage_timeline import stages_picture

        return stages_picture(self)

    def stage_timeline_text(self):
        """The stage timeline as text: one line per stage with one letter per moment. Raises ValueError if there are none."""
        from minllm.sim.stage_timeline import stages_text

        return stages_text(self)

    def example(self, space, array, line=None, kind=None):
        """The first recorded request that matches. Raises KeyError, which lists all requests, if none does."""
        for request in self.examples:
            if request.space == space and array in ("", request.array) and line in (None, request.line) and kind in (None, request.kind):
                return request
        there = sorted({f"{r.kind} of {r.array or 'shared memory'} at line {r.line}" for r in self.examples if r.space == space})
        wanted = f"{kind or 'access'} of {array or space + ' memory'}, line {line or 'any'}"
        raise KeyError(f"no {wanted}; there are: {', '.join(there) or 'none'}")
