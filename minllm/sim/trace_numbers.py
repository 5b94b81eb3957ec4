"""What a trace holds: plain numbers in dataclasses, for tables, tests and JSON."""

import json
from dataclasses import asdict, dataclass, field

from minllm.sim.traffic import SECTOR_BYTES, LaneAccess


@dataclass
class Traffic:
    """Accesses of one kind to one global array. A request is one instruction of one warp.

    bytes: what the lanes asked for, a byte counted for each lane that wants it. sectors: of 32 bytes, each once a request.
    unique_bytes: different bytes touched during the whole launch, the traffic that no cache can save.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    unique_bytes: int = 0

    @property
    def sector_bytes(self):
        """Bytes that move if no cache helps."""
        return self.sectors * SECTOR_BYTES

    @property
    def sectors_per_request(self):
        """Coalescing: 4 for neighbouring float32, 16 for neighbouring 16-byte vectors, 32 for lanes that are far apart."""
        return self.sectors / self.requests if self.requests else 0.0

    def __add__(self, other):
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass
class ArrayTraffic:
    """All accesses to one global array, by the name of the kernel's argument."""

    name: str
    array_bytes: int
    read: Traffic = field(default_factory=Traffic)
    write: Traffic = field(default_factory=Traffic)
    atomic: Traffic = field(default_factory=Traffic)

    @property
    def total(self):
        """Reads, writes and atomics together; a byte that is read and written is two unique bytes, one each way."""
        return self.read + self.write + self.atomic


@dataclass
class SharedLine:
    """Accesses of one source line to shared memory.

    turns: how often the banks were busy for it; least: how often they would have been without conflicts; worst: the most different
    words that one bank had to serve in a turn's place ("32-way conflict" is 32; 1 is none).
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
        """Turns beyond the least."""
        return self.turns - self.least


@dataclass
class PartialLine:
    """A source line that only some of a warp's lanes executed together: under a divergent branch, or behind a guard at an edge.

    Divergence shows where lanes access memory; a branch around arithmetic alone is not seen, since lanes run one after the other here and
    say nothing of what they do between accesses.
    """

    place: str
    line: int
    requests: int = 0
    partial: int = 0


@dataclass
class Request:
    """The first request of a source line, as an example to look at: who touched what."""

    place: str
    line: int
    space: str
    array: str
    kind: str
    lanes: list[LaneAccess]


@dataclass
class CopyGroup:
    """One group of asynchronous copies of a warp, or one bulk copy: the step in which it was issued, and the first step that has its data.

    Steps are counted by the first lane's waits, or by arrivals: what happens before the first is step 0. arrived is None if nobody
    waited. copies and bytes are one lane's.
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
    """One round of one stage of a pipeline that bulk copies fill: bytes, copied by `line`, and the moments (trace_stages.py) when its first
    copy was issued, its last one arrived, and its first and its last use came; None for what did not happen."""

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

    arrays: traffic to global memory by argument. shared: shared memory by source line. flops: counted operations by instruction.
    collectives: warp-wide instructions by name. barriers: block barriers, once a block. partial: lines where warps were not whole.
    pipeline: the copy groups of the first warp that started any (of the first block, for bulk copies); step_flops: its tensor-core
    operations in each of its steps. stages: the rounds of a pipeline's stages in the first block that has one, over so many moments.

    Accesses are counted as the source makes them; a compiler may merge some, never add any. What tensor cores read from shared memory by
    descriptor (wgmma) takes no turns here.
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
        """Turns of shared memory beyond the least, over all lines."""
        return sum(line.conflicts for line in self.shared)

    @property
    def tensor_core_flops(self):
        """Operations of matrix instructions."""
        return sum(count for name, count in self.flops.items() if "mma" in name)

    @property
    def total_flops(self):
        """All counted operations."""
        return sum(self.flops.values())

    @property
    def arithmetic_intensity(self):
        """Counted operations for each byte in sectors: what the kernel has if no cache helps."""
        return self.total_flops / self.total.sector_bytes if self.total.sectors else 0.0

    @property
    def best_arithmetic_intensity(self):
        """Counted operations for each different byte: what the kernel has if caches save all that they can."""
        return self.total_flops / self.total.unique_bytes if self.total.unique_bytes else 0.0

    def to_dict(self):
        """Everything as dicts, lists, strings and numbers, the derived numbers included."""
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

    def table(self):
        """The counts as a rich table, or rather a group of them: `rich.print(trace.table())`."""
        from minllm.sim.trace_table import tables

        return tables(self)

    def __str__(self):
        from minllm.sim.trace_table import text

        return text(self)

    def __rich__(self):
        return self.table()

    def access_map(self, array, line=None, kind=None):
        """The picture of a warp's first request to a global array: which lane touches which bytes of which sectors. -> Picture"""
        from minllm.sim.trace_pictures import access_map

        return access_map(self.example("global", array, line, kind))

    def bank_map(self, array="", line=None, kind=None):
        """The picture of a warp's first request to shared memory: which lane wants which bank, turn by turn. -> Picture"""
        from minllm.sim.trace_pictures import bank_map

        return bank_map(self.example("shared", array, line, kind))

    def timeline(self):
        """The picture of the pipeline: which copies are under way while which step computes. -> Picture"""
        from minllm.sim.trace_pictures import timeline

        return timeline(self)

    def stage_timeline(self):
        """The picture of a pipeline's stages (mbarriers and bulk copies): when each is filled, full, in use and free. -> Picture"""
        from minllm.sim.stage_timeline import stages_picture

        return stages_picture(self)

    def stage_timeline_text(self):
        """The same as text: a line for each stage, a letter for each moment."""
        from minllm.sim.stage_timeline import stages_text

        return stages_text(self)

    def example(self, space, array, line=None, kind=None):
        """The first recorded request that fits; KeyError, naming what there is, if none does."""
        for request in self.examples:
            if request.space == space and array in ("", request.array) and line in (None, request.line) and kind in (None, request.kind):
                return request
        there = sorted({f"{r.kind} of {r.array or 'shared memory'} at line {r.line}" for r in self.examples if r.space == space})
        wanted = f"{kind or 'access'} of {array or space + ' memory'}, line {line or 'any'}"
        raise KeyError(f"no {wanted}; there are: {', '.join(there) or 'none'}")
