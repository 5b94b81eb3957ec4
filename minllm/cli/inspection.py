"""`minllm inspect`: registers, memory, occupancy, instructions, PTX and SASS of a kernel, on any machine, for any GPU.

An `Inspection` holds the results for one kernel and one compute capability; inspection_report.py prints it.
"""

import difflib
import fnmatch
import inspect
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minllm.errors import InvalidOptionError, KernelCompilationError
from minllm.machine.devices import missing_compilers
from minllm.machine.occupancy import MULTIPROCESSORS, Occupancy, occupancy, round_up

PACKAGE = Path(__file__).resolve().parent.parent
STACK_UNIT = 8  # stack frames are multiples of this number of bytes


@dataclass(frozen=True)
class Inspection:
    """One kernel for one target.

    Registers, spills and stack are per thread, shared memory per block, all in bytes except registers. register_budget, wanted_blocks,
    accepted_spill_bytes, why_float64: design assumptions (catalogue.launch.MachineCode). instructions: {opcode: number of occurrences in
    the code}, None if nvdisasm is missing. float64, local_memory: instructions that compute in float64, or use local memory. missing:
    patterns of required instructions that are absent.
    """

    name: str
    kernel: str
    source: str
    target: str
    threads: int
    registers: int
    register_budget: int
    spill_bytes: int
    accepted_spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    wanted_blocks: int
    occupancy: Occupancy
    instructions: dict[str, int] | None
    float64: list[str]
    why_float64: str
    local_memory: list[str]
    missing: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return {**asdict(self), "occupancy": {**asdict(self.occupancy), "limited_by": self.occupancy.limited_by}}

    def faults(self) -> list[str]:
        """Violations of the design assumptions, as phrases that complete a sentence "it ..."; empty if there are none."""
        found = []
        if self.spill_bytes > self.accepted_spill_bytes:
            found.append(f"spills {self.spill_bytes} bytes per thread")
        if self.stack_bytes > round_up(self.accepted_spill_bytes, STACK_UNIT):
            found.append(f"has a stack frame of {self.stack_bytes} bytes per thread: a local array that is not in registers")
        if self.registers > self.register_budget:
            found.append(f"takes {self.registers} registers of {self.register_budget}: {self.wanted_blocks} blocks do not fit")
        if self.occupancy.blocks == 0:
            shared = self.static_shared_bytes + self.dynamic_shared_bytes
            found.append(f"cannot be launched: {self.threads} threads, {self.registers} registers, {shared} bytes of shared memory")
        if self.float64 and not self.why_float64:
            found.append(f"computes in float64: {', '.join(self.float64)}")
        if self.local_memory and not (self.spill_bytes or self.stack_bytes):
            found.append(f"uses local memory: {', '.join(self.local_memory)}")
        return [*found, *(f"has no instruction {pattern}" for pattern in self.missing)]


def parse_compute_capability(text: str) -> tuple[int, int]:
    """(9, 0) for "9.0", "90" or "sm_90a".

    Raises InvalidOptionError for other texts, and for GPUs that the kernels do not support.
    """
    found = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)a?", text.strip().lower())
    capability = (int(found[1]), int(found[2])) if found else None
    if capability not in MULTIPROCESSORS:
        allowed = ", ".join(f"{major}.{minor}" for major, minor in MULTIPROCESSORS)
        raise InvalidOptionError(f"--cc {text} is not a compute capability that the kernels are compiled for: choose one of {allowed}.")
    return capability


def find_kernels(query: str | None) -> list:
    """The MachineCode that `query` selects: all for None; the one with that name; else all that match.

    A name matches if it contains every word of `query`, or fits it as a pattern. Raises InvalidOptionError if there is no match.
    """
    require_compiler_packages()
    from minllm.catalogue import machine_code

    every = machine_code()
    if not query:
        return list(every.values())
    if query in every:
        return [every[query]]
    words = query.lower().split()
    found = [one for name, one in every.items() if all(word in name.lower() for word in words) or fnmatch.fnmatch(name, query)]
    if not found:
        pieces = sorted({"/".join(name.split("/")[:depth]) for name in every for depth in (1, 2, 3)} | set(every))
        close = difflib.get_close_matches(query, pieces, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "`minllm inspect` lists them all."
        raise InvalidOptionError(f"there is no kernel called {query}: {hint}")
    return found


def inspect_kernel(code, compute_capability: tuple[int, int], sass: list[str] | None = None) -> Inspection:
    """Compile a MachineCode (or read it from the cache) and inspect it.

    sass: its instructions, or none that are to be inspected; None: nvdisasm reads them, if it is installed. Raises KernelCompilationError
    if it cannot be compiled, or if the toolkit's wheels are missing.
    """
    from minllm.runtime.machine_code import float64_instructions, instruction_mix, local_memory_instructions

    require_toolkit()
    compiled = code.compile(compute_capability)
    if sass is None:
        sass = compiled.sass() if has_nvdisasm() else []
    mix = instruction_mix(sass) if sass else None
    missing = [pattern for pattern in code.contains if mix is not None and not fnmatch.filter(mix, pattern)]
    shared_bytes = compiled.shared_bytes + code.shared_bytes
    return Inspection(
        name=code.name, kernel=code.kernel.__name__, source=source_of(code.kernel.function), target=compiled.target,
        threads=code.threads, registers=compiled.registers, register_budget=code.registers,
        spill_bytes=compiled.spill_bytes, accepted_spill_bytes=code.spills.get(compute_capability, 0),
        stack_bytes=compiled.stack_bytes, static_shared_bytes=compiled.shared_bytes, dynamic_shared_bytes=code.shared_bytes,
        wanted_blocks=code.blocks,
        occupancy=occupancy(compute_capability, code.threads, compiled.registers, shared_bytes),
        instructions=mix, float64=float64_instructions(sass), why_float64=code.float64,
        local_memory=local_memory_instructions(sass), missing=missing,
    )  # fmt: skip


def source_of(function) -> str:
    """ "file:line" of a function, relative to the folder that holds the package."""
    path = Path(inspect.getsourcefile(function) or "")
    inside = path.is_relative_to(PACKAGE.parent)
    return f"{path.relative_to(PACKAGE.parent) if inside else path}:{function.__code__.co_firstlineno}"


def require_compiler_packages() -> None:
    """Raise KernelCompilationError if numba.cuda cannot be imported."""
    try:
        import numba.cuda  # noqa: F401
    except Exception as error:  # a broken binary may raise anything
        raise KernelCompilationError(f"numba.cuda cannot be imported ({error}): `minllm doctor` says what to install") from error


def require_toolkit() -> None:
    """Raise KernelCompilationError, with the command that fixes it, if the toolkit's compiler libraries are missing."""
    if missing := missing_compilers():
        raise KernelCompilationError(
            f"compiling a kernel takes the CUDA toolkit's {' and '.join(missing)}, which this Python does not find. No GPU is needed, only "
            "the wheels: pip install 'minllm[cu13]' (or minllm[cu12], where a driver is there that supports no more)"
        )


def has_nvdisasm() -> bool:
    """Whether nvdisasm, which disassembles machine code, is installed."""
    from cuda.pathfinder import find_nvidia_binary_utility

    return find_nvidia_binary_utility("nvdisasm") is not None
