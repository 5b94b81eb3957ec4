"""The instruction mix of machine code (SASS).

A SASS opcode includes its modifiers: LDG.E.128 loads 128 bits from global memory, HMMA.16816.F32.BF16 multiplies on the tensor cores, LDL
and STL access local memory, to which registers are spilled. A predicate (@P0, @!UP3) may precede it. NVIDIA lists the opcodes in "CUDA
Binary Utilities", section "Instruction Set Reference".
"""

import re
from collections import Counter

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
