"""Reading machine code: which instructions a kernel is made of, and what they give away.

SASS names an instruction with its modifiers: LDG.E.128 loads 128 bits from global memory, HMMA.16816.F32.BF16 multiplies on the tensor
cores, LDL and STL are local memory, which is what a spilled register becomes. A predicate (@P0, @!UP3) may stand in front. NVIDIA lists
the names in "CUDA Binary Utilities", section "Instruction Set Reference".
"""

import re
from collections import Counter

PREDICATE = re.compile(r"^@!?U?P\w+ ")
FLOAT64 = re.compile(r"^D(ADD|MUL|FMA|SETP|MNMX)\b|\bF64\b|\b(RCP|RSQ)64H\b")
LOCAL_MEMORY = re.compile(r"^(LDL|STL)\b")


def opcodes(sass: list[str]) -> list[str]:
    """The instructions' names with their modifiers, in order, without predicates and operands, padding left out."""
    names = [PREDICATE.sub("", instruction).split()[0] for instruction in sass]
    return [name for name in names if name != "NOP"]


def instruction_mix(sass: list[str]) -> dict[str, int]:
    """{opcode: how often it stands in the code}, the commonest first. How often it runs is another matter: loops."""
    return dict(Counter(opcodes(sass)).most_common())


def float64_instructions(sass: list[str]) -> list[str]:
    """Opcodes that compute in float64 or convert to or from it."""
    return sorted({name for name in opcodes(sass) if FLOAT64.search(name)})


def local_memory_instructions(sass: list[str]) -> list[str]:
    """Opcodes that load from or store to local memory."""
    return sorted({name for name in opcodes(sass) if LOCAL_MEMORY.search(name)})
