"""From 8- and 4-bit codes to operands of tensor cores, in registers.

ldmatrix moves 16-bit elements. A lane gets words of four bytes, or eight nibbles, in place of two 16-bit numbers: of K, whose rows it loads
as they lie, neighbouring channels of one key; of V, which it transposes, the same few channels of two keys. Any channel may go to any row
or column of mma, if queries and output agree: so every word becomes operands where it is, without any exchange between lanes.

Integer keys are multiplied as integers, four in a word:

    int8      words are operands as they are
    int4      one AND takes four nibbles, the upper ones after a shift

Values are multiplied by weights, which are fractions, and so become float16, as do keys that are 8-bit floats; float16 holds all codes
exactly:

    int8      prmt puts each byte below a byte of zeros: that is the float16 code * 2**-24, exactly: float16's smallest numbers, the
              denormal ones, are integers times 2**-24, and tensor cores take them like any others
    int4      one AND takes two nibbles that lie 16 bits from each other; those of the upper half of a byte are 16 times as large
    fp8_e4m3  cvt.rn.f16x2.e4m3x2
    fp8_e5m2  is the upper half of a float16: prmt again

Factors like 2**24 cost nothing: they belong to the scales of whole products (softmax.py).

mma leaves two neighbouring columns of a row of products with a lane: columns 2 t and 2 t + 1, t = lane % 4. Columns map to heads so:

    column c of a tile of eight heads is head c // 2 + 4 * (c % 2): a lane has heads t and t + 4
    if a block has at most four heads, both columns belong to head t: a lane has one head, and computes each exponential of softmax once

Two columns for one head can do more than repeat each other. For integer keys, one holds the upper and one the lower half of the query
(query.py). Weights of values that have several groups take along the scales of the first half of the groups in one column, and those of the
second half in the other (products.py).
"""

import functools
from dataclasses import dataclass
from typing import Any

from numba import cuda, int32, uint32

from minllm.ptx import e4m3x2_to_f16x2, prmt

DENORMAL = 2.0**-24  # the value of a float16's lowest bit if all bits above are zeros
NIBBLES, UPPER_NIBBLES = 0x000F000F, 0x00F000F0
FOUR_NIBBLES = 0x0F0F0F0F
SWAP_MIDDLE = 0x3120  # bytes 0, 2, 1, 3
IN_ORDER, IN_TURN = 0x5410, 0x5140  # prmt: the two lower bytes of one word, then those of another; or one of each in turn


@dataclass(frozen=True)
class CodeLanes:
    """Which heads and groups a lane holds."""

    heads: int  # per lane
    columns: int  # tiles of 8 heads
    halves: int  # heads per lane and tile, 1 or 2
    shared: bool  # whether the two columns of a head share its groups
    lane_groups: int  # groups of values per column

    @property
    def parts(self):
        """How many of a lane's two columns differ."""
        return 2 if self.halves == 2 or self.shared else 1

    @property
    def zero_tiles(self):
        """Products of weights and zeros for 16 keys and 8 heads: two of a lane's groups in each."""
        return -(-self.lane_groups // 2)


def lanes_of(kv_format, heads_here):
    """The CodeLanes of a block of `heads_here` query heads."""
    columns, halves = -(-heads_here // 8), 1 if heads_here <= 4 else 2
    shared = halves == 1 and kv_format.groups % 2 == 0
    return CodeLanes(columns * halves, columns, halves, shared, kv_format.groups // 2 if shared else kv_format.groups)


@dataclass(frozen=True)
class CodeOperands:
    """How one format's words become operands.

    For 8-bit floats, key_operands is like value_operands, and query_channel(step, half, lane) the first of the two channels in word `half`
    of B. For integers, key_operands(a, words, part, parts) makes the four words of A for a product of 32 channels, number `part` of the
    `parts` that two chunks take, from their four words. Word i of B for a head has four channels: two from query_channel(i, 0, lane) on and
    two from query_channel(i, 1, lane) on, in byte_order.
    """

    steps: int  # mma steps of 16 channels per chunk of 16 bytes
    unit: float  # what a value's code of 1 becomes
    upper_factor: float  # how many times as much it becomes in the last step of a chunk
    key_operands: Any
    value_operands: Any  # (a, words, at, part): the words of A for step `part`, from words[at] and words[at + 1], of eight keys each
    query_channel: Any
    value_channel: Any  # (step, half, lane): the channel of row lane // 4 + 8 * half of D
    byte_order: int = IN_ORDER


@functools.cache
def make_byte_halves(even_pair, odd_pair):
    """value_operands of bytes that prmt makes float16 of, given the selectors for bytes 0 and 2, 1 and 3."""

    @cuda.jit(device=True)
    def value_operands(a, words, at, part):
        for half in range(2):
            a[2 * half] = prmt(words[at + half], uint32(0), uint32(even_pair))
            a[2 * half + 1] = prmt(words[at + half], uint32(0), uint32(odd_pair))

    return value_operands


@cuda.jit(device=True)
def e5m2_key_operands(a, words, at, part):
    """A byte of zeros below each byte, two neighbours per word."""
    for row in range(2):
        a[row] = prmt(words[at + row], uint32(0), uint32(0x1404))
        a[2 + row] = prmt(words[at + row], uint32(0), uint32(0x3424))


@cuda.jit(device=True)
def query_channel_of_floats(step, half, lane):
    """Lane t of a row has bytes 4t to 4t + 3: the two words of B."""
    return int32(16 * step + 4 * (lane % 4) + 2 * half)


@cuda.jit(device=True)
def value_channel_of_bytes(step, half, lane):
    """A 16-bit element is two channels: the even ones become rows 0 to 7, the odd ones rows 8 to 15."""
    return int32(16 * step + 2 * (lane // 4) + half)


@cuda.jit(device=True)
def byte_key_operands(a, words, part, parts):
    """Two chunks in one product; or, where they are of different groups, one chunk and zeros."""
    for i in range(4):
        a[i] = words[i] if parts == 1 or i // 2 == part else uint32(0)


@cuda.jit(device=True)
def query_channel_of_bytes(word, half, lane):
    """A word of B for each chunk: lane t of a row has bytes 4t to 4t + 3."""
    return int32(16 * word + 4 * (lane % 4) + 2 * half)


@cuda.jit(device=True)
def e4m3_key_operands(a, words, at, part):
    """Neighbouring bytes are converted together."""
    for row in range(2):
        a[row] = e4m3x2_to_f16x2(words[at + row])
        a[2 + row] = e4m3x2_to_f16x2(words[at + row] >> uint32(16))


@cuda.jit(device=True)
def e4m3_value_operands(a, words, at, part):
    """Bytes of one channel are brought together first."""
    for half in range(2):
        word = prmt(words[at + half], uint32(0), uint32(SWAP_MIDDLE))
        a[2 * half] = e4m3x2_to_f16x2(word)
        a[2 * half + 1] = e4m3x2_to_f16x2(word >> uint32(16))


@cuda.jit(device=True)
def nibbles(word, part):
    """Two nibbles as float16: the lower ones of bytes 0 and 2, or, 16 times as large, the upper ones."""
    return uint32(word & uint32(UPPER_NIBBLES if part else NIBBLES))


@cuda.jit(device=True)
def nibble_key_operands(a, words, part, parts):
    """The lower nibbles of four bytes, then the upper ones."""
    for row in range(2):
        a[row] = uint32(words[2 * part + row] & uint32(FOUR_NIBBLES))
        a[2 + row] = uint32((words[2 * part + row] >> uint32(4)) & uint32(FOUR_NIBBLES))


@cuda.jit(device=True)
def nibble_value_operands(a, words, at, part):
    """Nibbles that lie 16 bits from each other, of two keys: of the first and the third byte, then of the second and the fourth."""
    for half in range(2):
        a[2 * half] = nibbles(words[at + half], part)
        a[2 * half + 1] = nibbles(words[at + half] >> uint32(8), part)


@cuda.jit(device=True)
def query_channel_of_nibbles(word, half, lane):
    """Two words of B for each chunk. Lane t of a row has the eight channels from 8t on, in quantization/reference.py's order: lower nibbles
    are channels 0, 4, 1 and 5 of them, upper ones 2, 6, 3 and 7."""
    return int32(32 * (word // 2) + 8 * (lane % 4) + 2 * (word % 2) + 4 * half)


@cuda.jit(device=True)
def value_channel_of_nibbles(step, half, lane):
    """A 16-bit element is four channels, every second one of eight: nibbles 0 and 2 are rows of an even step, 1 and 3 of an odd one."""
    row = lane // 4
    return int32(32 * (step // 2) + 8 * (row // 2) + row % 2 + 4 * half + 2 * (step % 2))


def operands_of(name):
    """CodeOperands of a format by its name (kernels/quantization/formats.py)."""
    if name == "int8":
        values = make_byte_halves(0x4240, 0x4341)
        return CodeOperands(1, DENORMAL, 1.0, byte_key_operands, values, query_channel_of_bytes, value_channel_of_bytes)
    if name == "fp8_e5m2":
        values = make_byte_halves(0x2404, 0x3414)
        return CodeOperands(1, 1.0, 1.0, e5m2_key_operands, values, query_channel_of_floats, value_channel_of_bytes)
    if name == "fp8_e4m3":
        products = (e4m3_key_operands, e4m3_value_operands)
        return CodeOperands(1, 1.0, 1.0, *products, query_channel_of_floats, value_channel_of_bytes)
    channels = (query_channel_of_nibbles, value_channel_of_nibbles)
    return CodeOperands(2, DENORMAL, 16.0, nibble_key_operands, nibble_value_operands, *channels, IN_TURN)
