"""The scales of a warp's groups: each lane loads those that it passes on, a tile before they are needed."""

from typing import Any, NamedTuple

from numba import cuda, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling


class Row(NamedTuple):
    """A row of weight, and what its format keeps of it."""

    number: Any
    kept: Any


class Rows(NamedTuple):
    """A lane's two rows of weight."""

    low: Row
    high: Row


class Scales(NamedTuple):
    """Registers for the groups of a lane, and device functions."""

    words: int
    values: int
    rows: Any  # (weight, low, high) -> Rows
    load: Any  # (weight, rows, first, words): what belongs to the lane's groups of a warp's steps from `first` on
    convert: Any  # (decoding, rows, words, values): values = these as Scales


def make_scales(tiling: BatchedGemvTiling, decoder: Decoder, steps: int) -> Scales:
    """The Scales of weights with rows of this many steps."""
    groups, words_of_a_group, last_group = decoder.groups, decoder.words, steps * decoder.groups - 1
    load_group, scale_of, begin = decoder.load, decoder.scale, decoder.begin
    entries = ceil_div(tiling.steps_of_warp(steps) * groups, 4)  # groups of a row for which a lane is responsible

    @cuda.jit(device=True, forceinline=True)
    def rows(weight, low, high):
        return Rows(Row(low, begin(weight, low)), Row(high, begin(weight, high)))

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, first, words):
        for i in range(entries):
            number = (uint32(cuda.threadIdx.x) & uint32(3)) + uint32(4 * i)
            group = min(uint32(uint32(first) * uint32(groups) + number), uint32(last_group))
            load_group(weight, rows.low.number, rows.low.kept, group, words, 2 * i * words_of_a_group)
            load_group(weight, rows.high.number, rows.high.kept, group, words, (2 * i + 1) * words_of_a_group)

    @cuda.jit(device=True, forceinline=True)
    def convert(decoding, rows, words, values):
        for i in range(entries):
            low = scale_of(decoding, rows.low.kept, words, 2 * i * words_of_a_group)
            high = scale_of(decoding, rows.high.kept, words, (2 * i + 1) * words_of_a_group)
            values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3] = low.factor, low.offset, high.factor, high.offset

    return Scales(2 * entries * words_of_a_group, 4 * entries, rows, load, convert)
