"""The launches of attention, a module a group of families; minllm/kernels/attention/**/specimens.py lists those not described yet."""

import itertools

from minllm.catalogue.attention import caps, prompts, rungs, splits, steps, trees, windows

FAMILIES = (rungs, prompts, splits, steps, windows, trees, caps)


def compiled():
    """The MachineCode of all families."""
    return itertools.chain.from_iterable(family.compiled() for family in FAMILIES)


def small():
    """The Launches of odd sizes of all families."""
    return itertools.chain.from_iterable(family.small() for family in FAMILIES)


def large():
    """The Launches of the sizes of models of all families."""
    return itertools.chain.from_iterable(family.large() for family in FAMILIES if hasattr(family, "large"))
