"""The launches of attention, a module a group of families."""

from minllm.catalogue.attention import benchmarks, caps, codes, merge, prompts, rungs, shared, splits, steps, trees, variants, windows
from minllm.catalogue.attention.paged import attention
from minllm.catalogue.launch import MachineCode
from minllm.kernels.attention import VARIANTS

FAMILIES = (rungs, prompts, splits, steps, codes, windows, trees, caps, merge, shared, variants, benchmarks)


def of_families(kind):
    """What all families list in their functions of this name."""
    return [one for family in FAMILIES if hasattr(family, kind) for one in getattr(family, kind)()]


def compiled():
    """The MachineCode of all families, and of variants that are in the table alone: of a decode step."""
    listed = of_families("compiled")
    described = {one.name.split("/")[1] for one in listed}
    others = (name for name in VARIANTS.names() if name not in described)
    return [*listed, *(MachineCode(f"attention/{name}/bfloat16", attention(name, 1, 20), blocks=1) for name in others)]


def small():
    """The Launches of odd sizes of all families."""
    return of_families("small")


def large():
    """The Launches of the sizes of models of all families."""
    return of_families("large")


def measured():
    """The measured rows of all families."""
    return of_families("measured")
