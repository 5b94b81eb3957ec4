"""A step of codes becomes numbers in registers: what lanes load of the codes in shared memory.

wgmma's left operand, m64k16, lies in registers: of 16 rows and 16 inputs, lane 4 g + t of a warp holds inputs 2 t, 2 t + 1, 2 t + 8 and
2 t + 9 of rows g and g + 8, two numbers per register: g low, g + 8 low, g high, g + 8 high. A step is four such operands.

Source: PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16" (A in registers).
"""

from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.quantization.decoder import STEP, TileDecoder
from minllm.kernels.vector import load_words

FRAGMENTS = STEP // 4  # registers for a lane's numbers of a step
WORDS = STEP // 8  # words of four-bit codes per row and step
BOTH_ROWS = 2 * WORDS
CHUNKS = STEP // 16  # 16-byte chunks of 8-bit codes per row and step


def make_chunk_at(code_bytes: int):
    """chunk_at(chunk): the word of a lane's rows at which a 16-byte chunk begins. TMA swizzles chunks by the row's place among eight."""
    chunks = code_bytes // 16
    rows_apart = {32: 4, 64: 2}[code_bytes]  # rows after which the swizzle changes

    @cuda.jit(device=True, forceinline=True)
    def chunk_at(chunk):
        swizzle = uint32(cuda.threadIdx.x) // uint32(4 * rows_apart) & uint32(chunks - 1)
        return (uint32(chunk) ^ swizzle) * uint32(4)

    return chunk_at


chunk_of_nibbles_at, chunk_of_bytes_at = make_chunk_at(STEP // 2), make_chunk_at(STEP)


@cuda.jit(device=True, forceinline=True)
def load_nibbles(memory, line, apart, words):
    """words[0 : 16] = the four-bit codes of a step: eight words of row low, then eight of row high."""
    for chunk in range(2):
        at = uint32(line + chunk_of_nibbles_at(chunk))
        load_words(memory, at, words, 4 * chunk)
        load_words(memory, at + uint32(apart), words, WORDS + 4 * chunk)


def make_decode(decoder: TileDecoder):
    """decode(memory, line, apart, lane, pairs, numbers): numbers[0 : 16] = a decoded step of both rows.

    line: the word of memory where the lane's row low begins; apart: words from there to row high, a constant, so that it becomes an offset
    of the loads.
    """
    number, groups, per_row = decoder.number, decoder.scales[0].groups, decoder.pairs
    words_of_group, chunks_of_group = WORDS // groups, CHUNKS // groups

    @cuda.jit(device=True, forceinline=True)
    def decode_nibbles(memory, line, apart, lane, pairs, numbers):
        words = cuda.local.array(BOTH_ROWS, uint32)
        load_nibbles(memory, line, apart, words)
        for word in range(WORDS):
            at = word // words_of_group * 2 * per_row
            numbers[2 * word] = number(words[word], lane, pairs, at)
            numbers[2 * word + 1] = number(words[WORDS + word], lane, pairs, at + per_row)

    @cuda.jit(device=True, forceinline=True)
    def decode_bytes(memory, line, apart, lane, pairs, numbers):
        """A lane loads only words that it needs. If it loaded 16 bytes at a time, the loads of a warp would take twice as many cycles of
        shared memory, which is as busy as the tensor cores."""
        first = ptx.shared_address(memory, uint32(line + lane.word))
        for chunk in range(CHUNKS):
            address, at = uint32(first + chunk_of_bytes_at(chunk) * uint32(4)), chunk // chunks_of_group * 2
            for i in range(4):  # inputs 0 to 7 of rows low and high, then inputs 8 to 15
                word = ptx.load_shared_32(uint32(address + i % 2 * 4 * apart + i // 2 * 8))
                numbers[4 * chunk + i] = number(word, lane, pairs, at + i % 2)

    return decode_bytes if decoder.code_bytes == STEP else decode_nibbles
