"""NF4: 4-bit codes for normally distributed numbers, in blocks of 64 with quantised scales (W4A16): its equations and its decoders.

    w' = NF4_CODES[code] * absmax[block]                 absmax = the largest |w| of 64 inputs of a row
    absmax' = map[absmax_code] * nested[block // 256] + offset

The 16 codes are quantiles of the normal distribution between -1 and 1, including 0, so trained weights use each about equally often.
An absmax in float32 would cost half a bit per number. Double quantisation subtracts the mean of all absmax and stores the rest in one byte,
a code of an 8-bit floating-point map, with a scale per 256 blocks: 0.13 bits per number. Codes, blocks and map are those of bitsandbytes;
blocks are numbered along the rows of the matrix, one row after the other.

Each row stores the number of its first block, so that a weight can stack several modules, or hold some columns of a matrix, and keep their
original block numbers. Two neighbouring codes share a byte, the first in its upper half, as in bitsandbytes' files.

On tensor cores a table of 256 pairs in shared memory turns a byte into a register of two 16-bit floats with one load. Lanes look up
different bytes, and shared memory has 32 banks of 4 bytes, so each lane has its own copy of the table in its own bank, 32 KB in all, and
there are no bank conflicts. The map of 256 numbers follows.

    pairs[byte, lane] = (table[byte >> 4], table[byte & 15])

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3 and appendix E; Dettmers et al. 2022, "8-bit
Optimizers via Block-wise Quantization", section 2 (the map).
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.quantization.decoder import (
    FMA,
    MINUS_ZEROS,
    PACK,
    STEP,
    Format,
    GroupDecoder,
    MmaDecoder,
    Scale,
    ScaleArray,
    Table,
    TileDecoder,
    nothing_ahead,
    x_as_it_is,
)
from minllm.kernels.quantization.groups import NESTED_BLOCK, NF4_BLOCK
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import AMPERE
from minllm.tiles.warp import WARP

BLOCK_SHIFT, NESTED_SHIFT = 6, 8  # log2 of the numbers per block, and of the blocks per nested scale
BLOCKS = 2  # blocks per step of a GEMV on tensor cores
NF4_CODES = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


class Nf4Weight(NamedTuple):
    """An NF4 matrix [outputs, inputs], two codes per byte."""

    codes: Any  # uint8 [outputs, inputs / 2]
    absmax: Any  # uint8 [inputs / 64, outputs], codes of `map`; float32 without double quantisation; why in this order: int4.py
    nested: Any  # float32 [blocks / 256, rounded up]; None without double quantisation
    map: Any  # float32 [256]
    offsets: Any  # float32 [outputs], the same for all rows of a module
    first_blocks: Any  # int32 [outputs], the number of a row's first block
    table: Any  # float32 [16], NF4_CODES


def dynamic_map() -> np.ndarray:
    """bitsandbytes' 8-bit map, ascending: 0, 1, and +-10**(e - 6) times 2**e fractions between 0.1 and 1."""
    values = [np.float32(0), np.float32(1)]
    for exponent in range(7):
        bounds = np.linspace(0.1, 1, 2**exponent + 1, dtype=np.float32)
        fractions = (bounds[:-1] + bounds[1:]) / 2 * np.float32(10.0 ** (exponent - 6))
        values += [*fractions, *-fractions]
    return np.sort(np.array(values, np.float32))


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The index of the nearest entry of an ascending table, uint8."""
    middles = (table[:-1] + table[1:]) / 2
    if len(table) > len(NF4_CODES):
        return np.searchsorted(middles, values).astype(np.uint8)
    index = np.zeros(np.shape(values), np.uint8)
    for middle in middles:  # 15 vectorised comparisons take a sixth of the time of a search for each number
        index += values > middle
    return index


def pack_pairs(codes: np.ndarray) -> np.ndarray:
    """Pack codes, uint8 [..., inputs], into bytes [..., inputs / 2], the first of two codes in the upper half."""
    return codes[..., ::2] << 4 | codes[..., 1::2]


def unpack_pairs(packed: np.ndarray) -> np.ndarray:
    """The inverse of `pack_pairs`: one code per byte."""
    return np.stack([packed >> 4, packed & 15], axis=-1).reshape(*packed.shape[:-1], -1)


def quantize_blocks(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes, absmax) of rows [rows, inputs]: uint8 [rows, inputs / 2], packed, and float32 [rows, blocks]."""
    blocks = rows.astype(np.float32).reshape(len(rows), -1, NF4_BLOCK)
    absmax = np.abs(blocks).max(axis=2)
    inverse = np.divide(np.float32(1), absmax, out=np.zeros_like(absmax), where=absmax > 0)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        codes = nearest(blocks * inverse[..., None], NF4_CODES)
    return pack_pairs(codes.reshape(rows.shape)), absmax


def double_quantize(absmax: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """(codes, nested, offset) of absmax [outputs, blocks]: uint8 of its shape, float32 [ceil(size / 256)], float32."""
    offset = absmax.mean(dtype=np.float32)
    centred = np.zeros(-(-absmax.size // NESTED_BLOCK) * NESTED_BLOCK, np.float32)
    with np.errstate(invalid="ignore"):  # check_scales refuses NaN and infinity
        centred[: absmax.size] = (absmax - offset).reshape(-1)
        blocks = centred.reshape(-1, NESTED_BLOCK)
        nested = np.abs(blocks).max(axis=1)
        inverse = np.divide(np.float32(1), nested, out=np.zeros_like(nested), where=nested > 0)
        codes = nearest(blocks * inverse[:, None], dynamic_map()).reshape(-1)[: absmax.size].reshape(absmax.shape)
    return codes, nested, offset


def double_quantized(codes: Any, absmax: np.ndarray) -> Nf4Weight:
    """The weight of one module from the results of `quantize_blocks`."""
    absmax_codes, nested, offset = double_quantize(absmax)
    outputs, blocks = absmax.shape
    first_blocks = np.arange(outputs, dtype=np.int32) * np.int32(blocks)
    offsets = np.full(outputs, offset, np.float32)
    return Nf4Weight(codes, np.ascontiguousarray(absmax_codes.T), nested, dynamic_map(), offsets, first_blocks, NF4_CODES)


def dequantize_nf4_reference(weight: Nf4Weight) -> np.ndarray:
    """table[code] * absmax, float32 [outputs, inputs]."""
    absmax = weight.absmax.T
    if weight.nested is not None:
        block = weight.first_blocks[:, None] + np.arange(absmax.shape[1])
        absmax = weight.map[absmax] * weight.nested[block // NESTED_BLOCK] + weight.offsets[:, None]
    codes = unpack_pairs(weight.codes).reshape(*absmax.shape, NF4_BLOCK)
    return (weight.table[codes] * absmax[..., None]).reshape(len(codes), -1)


@cuda.jit(device=True)
def look_up(word, table, values, at):
    """values[at : at + 8] = the table entries of the codes in a word; the first code of a byte is its upper nibble."""
    for byte in range(4):
        values[at + 2 * byte] = table[word >> uint32(8 * byte + 4) & uint32(15)]
        values[at + 2 * byte + 1] = table[word >> uint32(8 * byte) & uint32(15)]


@functools.cache
def make_group_decoder(is_nested: bool) -> GroupDecoder:
    """For CUDA cores. The table lies in 16 banks of shared memory, so lanes never conflict: the same number is broadcast."""

    @cuda.jit(device=True)
    def fill(table, weight):
        if cuda.threadIdx.x < 16:
            table[cuda.threadIdx.x] = weight.table[cuda.threadIdx.x]
        cuda.syncthreads()

    @cuda.jit(device=True)
    def absmax_of(weight, n, k):
        block = k >> BLOCK_SHIFT
        if not is_nested:
            return weight.absmax[block, n]
        absmax = weight.map[weight.absmax[block, n]]
        return absmax * weight.nested[(weight.first_blocks[n] + block) >> NESTED_SHIFT] + weight.offsets[n]

    return GroupDecoder(CODES, fill, absmax_of)


class Nf4Arrays(NamedTuple):
    """The arrays of an Nf4Weight [N, K], and N."""

    codes: Array
    absmax: Array
    nested: Array
    map: Array
    offsets: Array
    first_blocks: Array
    table: Array
    outputs: int


def nf4_arrays(weight: Nf4Weight) -> Nf4Arrays:
    """The arrays of a weight."""
    return Nf4Arrays(*weight, len(weight.codes))


def flat_arrays(weight: Nf4Weight) -> Nf4Arrays:
    """The same for the GEMVs: codes and absmax flat."""
    return nf4_arrays(weight)._replace(codes=weight.codes.reshape(-1), absmax=weight.absmax.reshape(-1))


CODES = 16
ENTRY_BYTES = 4 * WARP  # one pair in all its copies
PAIRS_BYTES = CODES * CODES * ENTRY_BYTES
COLUMNS = CODES * ENTRY_BYTES // 16  # 16-byte stores for the pairs that share a first code
MAP_ENTRIES = 256
TABLE_BYTES = PAIRS_BYTES + 4 * MAP_ENTRIES


class Tables(NamedTuple):
    """Shared addresses of the lane's copy of the table of pairs, and of the absmax map."""

    pairs: int
    map: int


@cuda.jit(device=True, forceinline=True)
def tables_at(table):
    """Return the lane's Tables in the shared array `table`."""
    start = ptx.keep_register(ptx.shared_address(table, 0))
    return Tables(uint32(start + uint32(4) * (uint32(cuda.threadIdx.x) & uint32(WARP - 1))), uint32(start + uint32(PAIRS_BYTES)))


@cuda.jit(device=True, forceinline=True)
def mapped(tables, code):
    """Return the number that the map holds for an absmax code."""
    return ptx.uint_as_float(ptx.load_shared_32(uint32(tables.map + (code << uint32(2)))))


@cuda.jit(device=True, forceinline=True)
def pair_at(tables, word, i):
    """Return the pair for byte i of a word.

    One dp4a with three bytes of 0 multiplies byte i by the size of an entry and adds the address of the lane's copy of the table.
    """
    return ptx.load_shared_32(ptx.dp4a_u32(word, uint32(ENTRY_BYTES << 8 * i), tables.pairs))


@functools.cache
def make_table(dtype: str, threads: int = 0) -> Table:
    """Return the Table of pairs of `dtype` for a block of `threads` (0: as many as it has).

    A thread writes all copies of the pairs of one second code with all first codes, so it loads every number once, all at the same time.
    """
    pack = PACK[dtype]

    @cuda.jit(device=True, forceinline=True)
    def fill_tables(table, weight):
        thread, stride = int32(cuda.threadIdx.x), int32(cuda.blockDim.x) if threads == 0 else threads
        for column in range(thread, COLUMNS, stride):
            second = weight.table[column * 16 // ENTRY_BYTES]
            for first in range(CODES):
                pair = pack(weight.table[first], second)
                ptx.store_128(table, uint32((first * COLUMNS + column) * 16), pair, pair, pair, pair)
        if weight.map is not None:
            for i in range(thread, MAP_ENTRIES, stride):
                ptx.store_32(table, PAIRS_BYTES + 4 * i, ptx.float_as_uint(float32(weight.map[i])))

    return Table(TABLE_BYTES, fill_tables, tables_at)


class Row(NamedTuple):
    """A row of weight: the number of its first block, and the offset added to its absmax."""

    first_block: int
    offset: float


@cuda.jit(device=True, forceinline=True)
def row_of(weight, number):
    """Return the Row of this number."""
    return Row(uint32(weight.first_blocks[number]), float32(weight.offsets[number]))


@cuda.jit(device=True, forceinline=True)
def add_scaled(total, absmax, offset, numbers_times_x, x):
    """MmaDecoder.add: the sum of a block times its absmax."""
    return total + absmax * numbers_times_x


@functools.cache
def make_mma_decoder(dtype: str, threads: int, is_nested: bool) -> MmaDecoder:
    """For up to 16 rows of x, with or without double quantisation."""

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, block, words, at):
        absmax = weight.absmax[uint32(block * uint32(weight.outputs) + row)]
        if is_nested:
            words[at] = uint32(absmax)
            words[at + 1] = ptx.float_as_uint(float32(weight.nested[uint32(kept.first_block + block) >> uint32(NESTED_SHIFT)]))
        else:
            words[at] = ptx.float_as_uint(float32(absmax))

    @cuda.jit(device=True, forceinline=True)
    def scale(tables, kept, words, at):
        if not is_nested:
            return Scale(ptx.uint_as_float(words[at]), float32(0))
        return Scale(mapped(tables, words[at]) * ptx.uint_as_float(words[at + 1]) + kept.offset, float32(0))

    words = 2 if is_nested else 1
    return MmaDecoder(BLOCKS, words, make_table(dtype, threads), 0.0, False, row_of, load, scale, pair_at, x_as_it_is, add_scaled)


class Lane(NamedTuple):
    """A lane's rows of weight, its Tables, and the entry size shifted to its byte: byte t of a word has inputs 2 t and 2 t + 1."""

    low: Row
    high: Row
    tables: Tables
    entry: int


@cuda.jit(device=True, forceinline=True)
def make_lane(weight, table, low, high):
    """Return the Lane of rows low and high."""
    entry = uint32(uint32(ENTRY_BYTES) << ((uint32(cuda.threadIdx.x) & uint32(3)) << uint32(3)))
    return Lane(row_of(weight, low), row_of(weight, high), tables_at(table), entry)


@cuda.jit(device=True, forceinline=True)
def nested_scale(weight, row, step):
    """Return the nested scale of a step's block; past the end of the weight the last one."""
    number = uint32(uint32(row.first_block + uint32(step)) >> uint32(NESTED_SHIFT))
    return weight.nested[min(number, uint32(weight.nested.shape[0] - 1))]


@cuda.jit(device=True, forceinline=True)
def load_nested(weight, lane, step):
    """Return the nested scales of a step's blocks, in rows low and high."""
    return nested_scale(weight, lane.low, step), nested_scale(weight, lane.high, step)


@functools.cache
def make_tile_decoder(dtype: str, is_nested: bool) -> TileDecoder:
    """For tiles, of which a step of 64 inputs is one block. Entries, absmax and their product are rounded to x's dtype."""
    absmax = ScaleArray(np.dtype(np.uint8 if is_nested else np.float32), STEP)
    pack, fma = PACK[dtype], FMA[dtype]

    def make_pairs(read):
        @cuda.jit(device=True, forceinline=True)
        def nested_absmax(lane, ahead, stage, elements, pairs):
            """pairs[0 : 2] = the absmax of rows low and high; ahead: their nested scales."""
            codes = read(stage, elements, 0, 0, 0) & uint32(255), read(stage, elements, 0, 0, 1) & uint32(255)
            low = mapped(lane.tables, codes[0]) * ahead[0] + lane.low.offset
            high = mapped(lane.tables, codes[1]) * ahead[1] + lane.high.offset
            pairs[0], pairs[1] = pack(low, low), pack(high, high)

        @cuda.jit(device=True, forceinline=True)
        def stored_absmax(lane, ahead, stage, elements, pairs):
            """pairs[0 : 2] = the absmax of rows low and high."""
            low, high = ptx.uint_as_float(read(stage, elements, 0, 0, 0)), ptx.uint_as_float(read(stage, elements, 0, 0, 1))
            pairs[0], pairs[1] = pack(low, low), pack(high, high)

        return nested_absmax if is_nested else stored_absmax

    @cuda.jit(device=True, forceinline=True)
    def number(word, lane, pairs, at):
        return fma(ptx.load_shared_32(ptx.dp4a_u32(word, lane.entry, lane.tables.pairs)), pairs[at], uint32(MINUS_ZEROS))

    load_ahead = load_nested if is_nested else nothing_ahead
    return TileDecoder((absmax,), STEP // 2, 1, make_table(dtype), make_lane, load_ahead, make_pairs, number)


NF4 = Format(
    "NF4", Nf4Weight, quantize_blocks, dequantize_nf4_reference, 2, AMPERE, look_up, arrays=flat_arrays,
    kind=lambda weight, k: (weight.nested is not None,), groups=make_group_decoder, mma=make_mma_decoder,
    tiles=make_tile_decoder, tile_arrays=nf4_arrays,
)  # fmt: skip
