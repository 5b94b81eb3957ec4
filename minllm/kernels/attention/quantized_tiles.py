"""Tiles of quantised keys and values: codes from global memory to registers, and from there, as 16-bit numbers, to shared memory.

A tile takes two steps, between which the block computes: `fetch` starts the loads of codes, 16 bytes a thread, and of scales; `store`
turns them into the numbers that shared_tiles.py would have copied, in the same padded rows. No dequantised number ever lies in global
memory. Rows that no query row may see are zeros, and are not read.

How a code becomes a number without a slow conversion: as the low bits of a float's fraction it is a number already, less a constant.

    int8    the byte at bits 8 to 15 of 0x47000000, which is 2**15: 32768 + code                    x = 1.0 * that + (zero - 32768 scale)
    int4    two nibbles in the halves of 0x43004300, two bfloat16 of 2**7: 128 + code               times scale, in one fma

The constant costs a part in 512 of a step, or nothing for int4. fp8 has an instruction: two at a time to float16. Its scale, the same for
a whole head, is left out here: the kernel puts that of keys into the scale of the scores, and that of values into the sums of a row.

Source of the idea: Kim et al. 2022, "Who Says Elephants Can't Run", section 4.2 (integers to floats by their bits).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.paged_cache import make_lookup
from minllm.kernels.attention.shared_tiles import row_words_of
from minllm.ptx import (
    load_32,
    load_128,
    pack_bf16x2,
    pack_f16x2,
    prmt,
    store_128,
    uint_as_float,
    unpack_bf16x2,
    unpack_e4m3x2,
    unpack_e5m2x2,
    unpack_f16x2,
)  # fmt: skip

CHUNK = 16  # bytes of codes that a thread loads at one time


@functools.cache
def make_dequantize(kv_format, dtype):
    """The device function dequantize(word, pair, out): a word of codes and its (scale, zero) to packed numbers of 16-bit `dtype`.

    out: uint32 [2] for four codes of 8 bits, [4] for eight of 4.
    """
    pack = pack_bf16x2 if dtype == "bfloat16" else pack_f16x2
    unpack_floats = unpack_e5m2x2 if kv_format.name == "fp8_e5m2" else unpack_e4m3x2

    @cuda.jit(device=True)
    def dequantize_bytes(word, pair, out):
        scale, zero = unpack_f16x2(pair)
        shifted = zero - float32(32768.0) * scale
        for i in range(2):
            low = uint_as_float(prmt(word, uint32(0x47000000), uint32(0x7404 + 2 * i * 16)))
            high = uint_as_float(prmt(word, uint32(0x47000000), uint32(0x7404 + (2 * i + 1) * 16)))
            out[i] = pack(low * scale + shifted, high * scale + shifted)

    @cuda.jit(device=True)
    def dequantize_nibbles(word, pair, out):
        scale, zero = unpack_f16x2(pair)
        shifted = zero - float32(128.0) * scale
        for i in range(4):
            low, high = unpack_bf16x2((word >> uint32(4 * i)) & uint32(0x000F000F) | uint32(0x43004300))
            out[i] = pack(low * scale + shifted, high * scale + shifted)

    @cuda.jit(device=True)
    def dequantize_floats(word, pair, out):
        for i in range(2):
            low, high = unpack_floats(word >> uint32(16 * i))
            out[i] = pack(low, high)

    return dequantize_floats if kv_format.is_float else dequantize_nibbles if kv_format.bits == 4 else dequantize_bytes


@functools.cache
def make_quantized_tiles(kv_format, dtype, block_size, key_tile, threads):
    """(fetch, store, words, pairs): device functions for blocks of `threads` threads, and how many uint32 of each kind a thread holds."""
    block_of, _ = make_lookup(block_size)
    dequantize = make_dequantize(kv_format, dtype)
    code_bytes, groups, is_float = kv_format.code_bytes, kv_format.groups, kv_format.is_float
    row_words = row_words_of(kv_format.head_dim)
    chunks = code_bytes // CHUNK  # in a row
    codes_a_word = 32 // kv_format.bits
    chunks_a_group = kv_format.group_size // (4 * codes_a_word)
    words_out = codes_a_word // 2  # of numbers, from one of codes
    stores = words_out  # of 16 bytes, from a chunk
    rows_at_once = min(threads // chunks, key_tile)
    copy_threads, passes = rows_at_once * chunks, -(-key_tile // rows_at_once)
    all_copy, whole_passes = copy_threads == threads, key_tile % rows_at_once == 0

    @cuda.jit(device=True)
    def fetch(codes, scales, block_table, kv_head, first_key, visible_start, visible_stop, words, pairs):
        """Start loading keys (or values) first_key to first_key + key_tile; zeros for those outside of the visible range."""
        blocks = cuda.local.array(passes, int32)
        chunk, first_row = uint32(cuda.threadIdx.x % chunks), int32(cuda.threadIdx.x // chunks)
        for i in range(passes):  # all looked up before the first is loaded, so that the loads of the table overlap
            position = int32(first_key + first_row + i * rows_at_once)
            blocks[i] = block_of(block_table, max(visible_start, min(position, visible_stop - 1)))
        kv_heads = uint32(codes.shape[2])
        for i in range(passes):
            row = int32(first_row + i * rows_at_once)
            position = int32(first_key + row)
            inside = visible_start <= position and position < visible_stop
            for j in range(4):
                words[4 * i + j] = uint32(0)
            pairs[i] = uint32(0)
            if inside and (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < key_tile):
                slot = uint32(position) % uint32(block_size)
                token = int64(blocks[i]) * block_size + slot
                at = (token * kv_heads + uint32(kv_head)) * code_bytes + chunk * uint32(CHUNK)
                words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3] = load_128(codes, at)
                if not is_float:
                    line = (int64(blocks[i]) * kv_heads + uint32(kv_head)) * block_size + slot
                    pairs[i] = load_32(scales, (line * groups + chunk // uint32(chunks_a_group)) * 2)

    @cuda.jit(device=True)
    def store(words, pairs, shared, at):
        """Dequantise what `fetch` has brought, and write it to the tile that begins at word `at` of shared memory."""
        chunk, first_row = int32(cuda.threadIdx.x % chunks), int32(cuda.threadIdx.x // chunks)
        to = int32(at + first_row * row_words + chunk * 4 * stores)
        numbers = cuda.local.array(4, uint32)
        for i in range(passes):
            row = int32(first_row + i * rows_at_once)
            if (all_copy or cuda.threadIdx.x < copy_threads) and (whole_passes or row < key_tile):
                for j in range(4):  # words of codes; two of 8 bits fill a store of 16 bytes, one of 4 bits does
                    part = cuda.local.array(4, uint32)
                    dequantize(words[4 * i + j], pairs[i], part)
                    for k in range(words_out):
                        numbers[(j * words_out + k) % 4] = part[k]
                    if (j + 1) * words_out % 4 == 0:
                        end = (j + 1) * words_out - 4
                        index = int32(to + i * rows_at_once * row_words + end)
                        store_128(shared, index, numbers[0], numbers[1], numbers[2], numbers[3])

    return fetch, store, 4 * passes, passes
