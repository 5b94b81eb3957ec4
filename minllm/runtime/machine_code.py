"""Machine code (SASS): its instructions, as nvdisasm reads them, and their mix.

A SASS opcode includes its modifiers: LDG.E.128 loads 128 bits from global memory, HMMA.16816.F32.BF16 multiplies on the tensor cores, LDL
and STL access local memory, to which registers are spilled. A predicate (@P0, @!UP3) may precede it. NVIDIA lists the opcodes in "CUDA
Binary Utilities", section "Instruction Set Reference".
"""

import itertools
import re
import struct
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from minllm.errors import KernelCompilationError

INSTRUCTION_BYTES = 16  # since Volta
PREDICATE = re.compile(r"^@!?U?P\w+ ")
FLOAT64 = re.compile(r"^D(ADD|MUL|FMA|SETP|MNMX)\b|\bF64\b|\b(RCP|RSQ)64H\b")
LOCAL_MEMORY = re.compile(r"^(LDL|STL)\b")


def opcodes(sass: list[str]) -> list[str]:
    """The opcodes with their modifiers, in order, without predicates, operands and padding (NOP)."""
    names = [PREDICATE.sub("", instruction).split()[0] for instruction in sass]
    return [name for name in names if name != "NOP"]


def instruction_mix(sass: list[str]) -> dict[str, int]:
    """{opcode: occurrences in the code}, most common first; loops execute some of them more often."""
    return dict(Counter(opcodes(sass)).most_common())


def float64_instructions(sass: list[str]) -> list[str]:
    """Opcodes that compute in float64 or convert to or from it."""
    return sorted({name for name in opcodes(sass) if FLOAT64.search(name)})


def local_memory_instructions(sass: list[str]) -> list[str]:
    """Opcodes that load from or store to local memory."""
    return sorted({name for name in opcodes(sass) if LOCAL_MEMORY.search(name)})


def disassembled(code: bytes, *options: str) -> str:
    """The output of nvdisasm -ndf with these options, of a cubin or of machine code. Raises KernelCompilationError without nvdisasm."""
    from cuda.pathfinder import find_nvidia_binary_utility

    nvdisasm = find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        raise KernelCompilationError("nvdisasm was not found, and SASS cannot be shown without it: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:  # Windows lets no other process open a file that is open here
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        return subprocess.run([nvdisasm, "-ndf", *options, path], capture_output=True, text=True, check=True).stdout


def instructions_in(disassembly: str) -> list[str]:
    """The instructions in nvdisasm's output, without addresses."""
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", disassembly)
    return [re.sub(r"\s+", " ", instruction).strip() for instruction in instructions]


def sass_of_all(kernels: list[Any]) -> list[list[str]]:
    """The instructions of CompiledKernels for one target, without labels. nvdisasm, which takes 0.3 s to start, starts once."""
    codes = [code_in(one.cubin) for one in kernels]
    instructions = iter(instructions_in(disassembled(b"".join(codes), "-b", kernels[0].target.replace("sm_", "SM"))))
    return [list(itertools.islice(instructions, len(code) // INSTRUCTION_BYTES)) for code in codes]


def code_in(cubin: bytes) -> bytes:
    """The machine code in a cubin, an ELF file: its sections .text."""
    (start,), (size, count, of_names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<2I4Q", cubin, start + number * size) for number in range(count)]
    names = sections[of_names][4]
    return b"".join(cubin[begin : begin + length] for name, _, _, _, begin, length in sections if cubin.startswith(b".text.", names + name))
