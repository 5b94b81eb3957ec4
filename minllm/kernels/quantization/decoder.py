"""The interface of a weight format: how codes in registers become numbers, for each kind of kernel. One file per format beside this one.

    unpack             CUDA cores: float32 numbers of a word of codes                  GEMVs, experts, dequantised matrices
    GroupDecoder       what they need besides, where all formats share a kernel        matmul/quantized/group_gemv.py
    MmaDecoder         mma.sync, up to 16 rows of x: pairs of 16-bit numbers, whose sums are scaled    matmul/quantized/tensor_core_gemv/
    TileDecoder        wgmma, any number of rows: pairs of 16-bit numbers, scaled                      matmul/quantized/mixed_input/
    RowCodes           W8A8: rows of x become codes too, and tensor cores multiply codes               rows.py, tensor_core.py

In mma.sync's operand A, lane 4 g + t of a warp holds numbers of rows g and g + 8 of 16 rows of weight, "low" and "high". The order of k is
free in a sum over k, so a lane loads adjacent bytes of codes, and takes the same inputs of x. Scales are loaded long before they are
used, and stay unconverted until then, so that no instruction waits for them.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16", and "for wgmma.mma_async.m64nNk16".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.runtime.array_protocol import Array

INPUTS, STEP = 128, 64  # inputs per step of 4-bit codes: of a GEMV on tensor cores, and of a tile
ROW_BYTES, LANE_BYTES = 64, 16  # bytes of codes per row and step of such a GEMV; a lane's share of them
MINUS_ZEROS = 0x80008000  # a pair of -0: an fma that adds it only multiplies, and keeps the sign of zero
PACK = {"bfloat16": ptx.pack_bf16x2, "float16": ptx.pack_f16x2}
FMA = {"bfloat16": ptx.fma_bf16x2, "float16": ptx.fma_f16x2}


class Table(NamedTuple):
    """What a format keeps in the shared memory of a block."""

    bytes: int  # 0 without a table
    fill: Callable  # (table, weight): all threads fill it before a barrier
    decoding: Callable  # (table) -> the lane's `decoding`, by which it finds entries


class GroupDecoder(NamedTuple):
    """CUDA cores. A lane loads 16 bytes of codes, all of one group; Format.unpack makes numbers of them."""

    entries: int  # numbers of the table in shared memory, which `unpack` is given; 0 without one
    fill: Callable  # (table, weight): all threads of a block fill it, and wait
    scale: Callable  # (weight, n, k) -> the scale of row n's group with input k


class MmaDecoder(NamedTuple):
    """Up to 16 rows of x. A step of 128 inputs has `groups` groups with their own scales: 1, 2 or 4.

    A lane loads the data of a group long before it needs them, and converts them to a Scale then.
    """

    groups: int
    words: int  # registers for the loaded data of a group
    table: Table
    unit_of_sums: float  # factor of the sums of x over a group; 0 if `add` needs none
    has_offsets: bool  # whether `add` needs an offset per group
    begin: Callable  # (weight, row) -> `kept`, the format's data of a row
    load: Callable  # (weight, row, kept, group, words, at): words[at : at + self.words] = the data of a group of a row; if a group is
    # longer than a step, `group` is the number of the step
    scale: Callable  # (decoding, kept, words, at) -> the Scale in these words
    pair: Callable  # (decoding, word, i) -> the numbers of codes 2 i and 2 i + 1 of a word, as a register of two 16-bit floats
    pair_of_x: Callable  # (word, i) -> the two inputs that pair i multiplies, from a word of unmodified x
    add: Callable  # (total, factor, offset, sum, sum_of_x) -> total plus a group's contribution; sum: of the group's numbers times x


class Scale(NamedTuple):
    """A group's scale, and its offset: zero point, minimum, or 0."""

    factor: float
    offset: float


class ScaleArray(NamedTuple):
    """An array [groups, N] of a weight in groups of `group_size` inputs, of which TMA loads a step's elements beside the codes."""

    dtype: np.dtype
    group_size: int

    @property
    def groups(self) -> int:
        """Groups per step."""
        return ceil_div(STEP, self.group_size)

    @property
    def bytes(self) -> int:
        """Bytes that arrive per row and step."""
        return self.groups * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes of shared memory per row and step; with 4, tiles of 32 or more rows begin at multiples of 128 bytes, as TMA requires."""
        return max(self.bytes, 4)


class TileDecoder(NamedTuple):
    """Any number of rows of x. A lane of wgmma's left operand in registers holds inputs 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of two rows.

    Its `Lane` is the data that it keeps over all steps. At the beginning of a step scales become pairs of the same 16-bit number.
    """

    scales: tuple[ScaleArray, ...]  # the one or two arrays of scales that TMA loads with the codes
    code_bytes: int  # bytes of codes per row and step
    pairs: int  # registers for the scales of a row and group
    table: Table
    make_lane: Callable  # (weight, table, low, high) -> Lane of rows low and high
    load_ahead: Callable  # (weight, lane, step) -> the lane's scale data for a step that no TMA loads, unconverted
    make_pairs: Callable  # (read) -> make_pairs(lane, ahead, stage, elements, pairs): pairs = the scales of each group in row low, then
    # row high, as pairs of 16-bit floats; ahead: from load_ahead; stage: its shared address; read, elements: those of ScaleTiles
    number: Callable  # (word, lane, pairs, at) -> the pair of numbers of the lane's codes of a word; pairs[at : at + self.pairs]: scales

    @property
    def row_bytes(self) -> int:
        """Bytes of a stage per row of weight."""
        return self.code_bytes + sum(one.room for one in self.scales)

    @property
    def bytes_of_arrivals(self) -> int:
        """Bytes that TMA loads per row of weight and step."""
        return self.code_bytes + sum(one.bytes for one in self.scales)


class RowCodes(NamedTuple):
    """8-bit codes that tensor cores multiply as they are: those of weight by those of x, both with a scale per row."""

    dtype: Any  # in which weights hold them
    largest: int  # the largest code's number
    bits: Callable  # (value) -> the code, as the bits of a uint8, of a number between -largest and largest
    number: Callable  # (value) -> the same code as a float32
    word: Callable  # (values, at) -> the codes of values[at : at + 4], packed in a 32-bit word
    multiply: Callable  # (x, codes) -> x @ codes.T of codes, float32, in NumPy
    mma: Callable  # mma.sync of codes, 32 deep
    sum_type: Any  # type of its sums
    wgmma: str  # dtype of the codes for wgmma


class RowArrays(NamedTuple):
    """A W8A8 weight [N, K]: codes [N * K], scales [N]."""

    codes: Array
    scales: Array


def row_arrays(weight: Any) -> RowArrays:
    """Format.arrays of W8A8."""
    return RowArrays(weight.codes.reshape(-1), weight.scales)


class Format(NamedTuple):
    """What kernels and weights/ need of a weight format; decoders that no kernel takes are None.

    kind: what decoders are specialised for, besides the dtype of x.
    """

    name: str
    weight: Any  # the NamedTuple of its arrays
    quantize: Callable | None  # (matrix, float32) -> the arrays, in NumPy; None: only files store it
    dequantize: Callable  # (weight) -> float32 [outputs, inputs], in NumPy
    per_byte: int  # codes per byte
    since: tuple[int, int]  # first compute capability with its mma.sync
    unpack: Callable  # (word, given, values, at): values[at : at + 4 * per_byte] = the codes of a word as float32; given: its zero
    # point, or its table; not used by others
    takes: Callable = lambda k, weight: True  # (k, weight) -> whether GEMVs on tensor cores support its groups
    arrays: Callable = row_arrays  # (weight) -> NamedTuple of its arrays for kernels on tensor cores
    kind: Callable = lambda weight, k: ()  # (weight, k) -> tuple
    middle: float = 0.0  # zero point of weights that store none
    pairs_of_eight: Callable | None = None  # (dtype) -> pairs_of_eight(words, eight, scale): without zero points, the weights of an eighth,
    # or a quarter, of the codes in 16 bytes, as four words of two numbers of `dtype`; scale: float32
    groups: Callable | None = None  # (*kind) -> GroupDecoder
    mma: Callable | None = None  # (dtype, threads, *kind) -> MmaDecoder
    tiles: Callable | None = None  # (dtype, *kind) -> TileDecoder
    tile_arrays: Callable = lambda weight: None  # (weight) -> the arrays that lanes of a tile's kernel load
    codes: RowCodes | None = None

    @property
    def inputs(self) -> int:
        """Inputs per step of a GEMV on tensor cores: 64 bytes of codes per row."""
        return ROW_BYTES * self.per_byte


def make_unpack(unpack_word: Callable, per_byte: int):
    """unpack(words, given, values): the numbers of the codes in four words, by Format.unpack."""
    per_word = 4 * per_byte

    @cuda.jit(device=True)
    def unpack(words, given, values):
        for word in range(4):
            unpack_word(words[word], given, values, per_word * word)

    return unpack


@cuda.jit(device=True, forceinline=True)
def x_as_it_is(word, i):
    """MmaDecoder.pair_of_x for formats that take x unchanged."""
    return word


@cuda.jit(device=True, forceinline=True)
def fill_nothing(table, weight):
    """Table.fill for a format without a table."""


@cuda.jit(device=True, forceinline=True)
def no_decoding(table):
    """Table.decoding for a format without a table."""
    return uint32(0)


NO_TABLE = Table(0, fill_nothing, no_decoding)


@cuda.jit(device=True, forceinline=True)
def nothing_ahead(weight, lane, step):
    """TileDecoder.load_ahead for a format whose scales arrive with the codes."""
    return uint32(0)


@cuda.jit(device=True, forceinline=True)
def float_of_float16(word):
    """Return the float16 with the bits of a word, as float32."""
    return ptx.unpack_f16x2(word)[0]


@cuda.jit(device=True, forceinline=True)
def float_of_bfloat16(word):
    """Return the bfloat16 with the bits of a word, as float32."""
    return ptx.uint_as_float(word << uint32(16))


@cuda.jit(device=True, forceinline=True)
def float_of_float32(word):
    """Return the float32 with the bits of a word."""
    return ptx.uint_as_float(word)


FLOAT_OF = {"float16": float_of_float16, "bfloat16": float_of_bfloat16, "float32": float_of_float32}


@cuda.jit(device=True, forceinline=True)
def unknown_zero():
    """Return 0, which the compiler does not know: a known mask would be moved to a register for every pair that it is applied to."""
    return uint32(ptx.keep_register(uint32(cuda.threadIdx.x)) >> uint32(16))


def make_pair_of(scales: np.dtype, dtype: str):
    """pair_of(word): a scale's bits as a pair of the same number of x's `dtype`; scales: their dtype."""
    float_of, pack = FLOAT_OF[scales.name], PACK[dtype]

    @cuda.jit(device=True, forceinline=True)
    def pair_of(word):
        scale = float_of(word)
        return pack(scale, scale)

    return pair_of
