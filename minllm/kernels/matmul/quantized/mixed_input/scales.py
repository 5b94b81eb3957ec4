"""Scales and zero points of a step, which TMA loads to shared memory beside the step's codes.

    stage:  x | codes | first array | second array          an array's tile: for each half of the rows [groups of the step, rows]

Scales are stored by group, so the rows of a tile are neighbours in memory, and a step's scales take a few hundred bytes. If lanes loaded
them from global memory, each row would cost L1 one cycle, however few bytes it takes, and the 64-bit addresses some ten instructions.

Gate and up lie apart in the weight, so each half of a gated tile's rows is loaded on its own; otherwise there is one "half", all rows.
A lane's row high is eight rows after row low, or the same row of the other half (mainloop.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.quantization.decoder import STEP, ScaleArray
from minllm.tiles import tma

WORD_MASK = 0xFFFFFFFC  # bits of a byte's number that select its word


ABSENT = ScaleArray(np.dtype(np.float32), STEP)  # stands for an array that a format does not have; it is not loaded


class ScaleMaps(NamedTuple):
    """The tensor maps of a weight's arrays of scales, or None for an absent one."""

    first: Any
    second: Any


class Element(NamedTuple):
    """Where an array's element for a row lies: the byte of the stage at which its word begins, and its lowest bit in that word."""

    byte: int
    bit: int


class Elements(NamedTuple):
    """A lane's Elements for its row low, in the first group of a step."""

    first: Element
    second: Element


class ScaleTiles(NamedTuple):
    """The device functions for the arrays of scales of a step."""

    load: Callable  # (stage, maps, half, row, step): start the copies for a half of the tile's rows, which begins with row `row` of weight
    elements: Callable  # (place) -> Elements of a lane whose row low is the tile's row `place`
    read: Callable  # (stage, elements, number, group, high) -> a word with an array's element for row low or high in its lowest bits


def make_scale_tiles(arrays: tuple[ScaleArray, ...], tiling: MixedInputTiling, gated: bool, code_bytes: int) -> ScaleTiles:
    """Return the ScaleTiles of up to two arrays; code_bytes: bytes of codes per row and step."""
    rows, count, paired = tiling.columns(gated), len(arrays), tiling.pairs_rows(gated)
    one, two = (*arrays, ABSENT, ABSENT)[:2]
    one_at = tiling.x_tile.bytes + tiling.rows * code_bytes  # byte of the stage at which the first array begins
    two_at = one_at + tiling.rows * one.room
    one_half, two_half, group_size = rows * one.room, rows * two.room, one.group_size
    element_of_one, read_one = make_element(one, one_at, rows, paired)
    element_of_two, read_two = make_element(two, two_at, rows, paired)

    @cuda.jit(device=True, forceinline=True)
    def load(stage, maps, half, row, step):
        group = int32(uint32(step) * uint32(STEP) // uint32(group_size))
        if count > 0:
            tma.load_2d(stage, one_at + half * one_half, maps.first, row, group)
        if count > 1:
            tma.load_2d(stage, two_at + half * two_half, maps.second, row, group)

    @cuda.jit(device=True, forceinline=True)
    def elements(place):
        return Elements(element_of_one(place), element_of_two(place))

    @cuda.jit(device=True, forceinline=True)
    def read(stage, elements, number, group, high):
        if number == 0:
            return read_one(stage, elements.first, group, high)
        return read_two(stage, elements.second, group, high)

    return ScaleTiles(load, elements, read)


def make_element(array: ScaleArray, first_byte: int, rows: int, paired: bool):
    """Return device functions (element_of, read) of one array; rows: rows of a half; paired: a lane's row high is in the other half."""
    itemsize, half_bytes = array.dtype.itemsize, rows * array.room
    apart = half_bytes if paired else 8 * itemsize

    @cuda.jit(device=True, forceinline=True)
    def element_of(place):
        half, behind = uint32(place) // uint32(rows), uint32(place) % uint32(rows) * uint32(itemsize)
        byte = uint32(uint32(first_byte) + half * uint32(half_bytes) + (behind & uint32(WORD_MASK)))
        return Element(ptx.keep_register(byte), uint32((behind & uint32(3)) << uint32(3)))

    @cuda.jit(device=True, forceinline=True)
    def read(stage, element, group, high):
        behind = group * rows * itemsize + high * apart
        return ptx.load_shared_32(uint32(stage + element.byte + uint32(behind))) >> element.bit

    return element_of, read
