"""A warp's loads from HBM: each lane loads its own codes, and the scales that it passes on to other lanes."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, int32, int64, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.batched_gemv.tiling import BatchedGemvTiling
from minllm.kernels.quantization.decoder import BatchedDecoder

ROW_BYTES, WORDS = 64, 4  # bytes of codes per row and step; a lane's words of them
CODE_WORDS = 2 * WORDS  # words of codes of a lane's two rows


class Row(NamedTuple):
    """A row of weight: its number, and what BatchedDecoder.begin returned for it."""

    number: int
    kept: Any


class Rows(NamedTuple):
    """A lane's two rows of weight."""

    low: Row
    high: Row


class Loads(NamedTuple):
    """Numbers of registers for the steps in flight, and the device functions that fill them."""

    code_words: int
    scale_words: int
    scale_values: int
    rows: Callable  # (weight, low, high) -> Rows
    places: Callable  # (rows, first) -> Places of a warp's steps from `first` on
    codes: Callable  # (u, array, places, first, codes): loads a lane's codes of the u-th of these steps
    scales: Callable  # (weight, rows, first, words): loads the data of the lane's groups in all these steps
    convert: Callable  # (decoding, rows, words, values): values = the Scales in these words


class Places(NamedTuple):
    """Byte offsets of a lane's codes of a chunk, in both of its rows; 64 bits, to which the steps add constants."""

    low: int
    high: int


def make_load_codes(tiling: BatchedGemvTiling, groups: int, steps: int):
    """Return device functions (places, load): find a lane's Places, and load its codes of the warp's u-th step."""
    splits, lane_bytes, group_bytes, last, row_bytes = tiling.splits, 4 * WORDS // groups, ROW_BYTES // groups, steps - 1, steps * ROW_BYTES
    is_padded = tiling.steps_of_block(steps) * tiling.cluster != steps

    @cuda.jit(device=True, forceinline=True)
    def places(rows, first):
        own = int64((int32(cuda.threadIdx.x) & 3) * lane_bytes + first * ROW_BYTES)
        return Places(int64(rows.low.number) * row_bytes + own, int64(rows.high.number) * row_bytes + own)

    @cuda.jit(device=True, forceinline=True)
    def load_row(array, place, codes, at):
        if groups == 1:
            codes[at], codes[at + 1], codes[at + 2], codes[at + 3] = ptx.load_128_streaming(array, place)
        elif groups == 2:
            codes[at], codes[at + 1] = ptx.load_64_ordered(array, place)
            codes[at + 2], codes[at + 3] = ptx.load_64_ordered(array, place + group_bytes)
        else:
            for group in range(groups):
                codes[at + group] = ptx.load_32_ordered(array, place + group * group_bytes)

    @cuda.jit(device=True, forceinline=True)
    def load(u, array, places, first, codes):
        """codes[8 u : 8 u + 8] = the codes of row low, then of row high; past the last step of a row, that step again."""
        further = u * splits * ROW_BYTES
        if is_padded:
            further = int64((min(int32(first + u * splits), int32(last)) - first) * ROW_BYTES)
        load_row(array, places.low + further, codes, u * CODE_WORDS)
        load_row(array, places.high + further, codes, u * CODE_WORDS + WORDS)

    return places, load


def make_loads(tiling: BatchedGemvTiling, decoder: BatchedDecoder, steps: int) -> Loads:
    """Return the Loads of weights with rows of this many steps."""
    splits, groups, words_of_a_group, last_group = tiling.splits, decoder.groups, decoder.words, steps * decoder.groups - 1
    (places, load_codes), load_group, scale_of, begin = make_load_codes(tiling, groups, steps), decoder.load, decoder.scale, decoder.begin
    entries = ceil_div(tiling.unroll * groups, 4)  # groups per row that one lane loads

    @cuda.jit(device=True, forceinline=True)
    def rows(weight, low, high):
        return Rows(Row(low, begin(weight, low)), Row(high, begin(weight, high)))

    @cuda.jit(device=True, forceinline=True)
    def scales(weight, rows, first, words):
        for i in range(entries):
            number = (uint32(cuda.threadIdx.x) & uint32(3)) + uint32(4 * i)
            step, group = uint32(first) + number // uint32(groups) * uint32(splits), number % uint32(groups)
            group = min(uint32(step * uint32(groups) + group), uint32(last_group))
            load_group(weight, rows.low.number, rows.low.kept, group, words, 2 * i * words_of_a_group)
            load_group(weight, rows.high.number, rows.high.kept, group, words, (2 * i + 1) * words_of_a_group)

    @cuda.jit(device=True, forceinline=True)
    def convert(decoding, rows, words, values):
        for i in range(entries):
            low = scale_of(decoding, rows.low.kept, words, 2 * i * words_of_a_group)
            high = scale_of(decoding, rows.high.kept, words, (2 * i + 1) * words_of_a_group)
            values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3] = low.factor, low.offset, high.factor, high.offset

    return Loads(tiling.unroll * CODE_WORDS, 2 * entries * words_of_a_group, 4 * entries, rows, places, load_codes, scales, convert)
