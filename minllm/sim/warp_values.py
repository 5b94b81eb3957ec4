"""What a warp-wide instruction computes from its lanes' values: PTX ISA, "shfl.sync", "vote.sync", "match.sync".

numba-cuda gives masks the type int32, so a ballot of all lanes is -1.
"""

import numpy as np

from minllm.sim.scalars import integer_type
from minllm.sim.thread import WARP_SIZE

MASK = integer_type(np.int32)  # the type of a vote's result


def source_lane(kind, lane, operand):
    """The lane from which a shuffle reads, of which the low five bits of the operand decide; the own one beyond an end of the warp."""
    operand = int(operand) % WARP_SIZE
    if kind == "shfl":
        return operand
    if kind == "shfl_xor":
        return lane ^ operand
    source = lane + operand if kind == "shfl_down" else lane - operand
    return source if 0 <= source < WARP_SIZE else lane


def ballot(values):
    """The mask of lanes whose predicate is true. values: {lane: predicate}."""
    return MASK(sum(1 << lane for lane, value in values.items() if value))


def match_any(values):
    """{lane: mask of the lanes that have the same bits}."""
    compared = bits(values)
    return {lane: MASK(sum(1 << other for other in compared if compared[other] == own)) for lane, own in compared.items()}


def match_all(values):
    """(mask of all lanes, True) if they have the same bits, else (0, False)."""
    same = len(set(bits(values).values())) == 1
    return (MASK(sum(1 << lane for lane in values)) if same else 0), same


def bits(values):
    """{lane: number} with the bits of floats, of which NaN equals itself and -0.0 does not equal 0.0."""
    return {lane: value.tobytes() if isinstance(value, np.floating) else value for lane, value in values.items()}
