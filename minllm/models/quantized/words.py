"""Packing codes into words of 32 bits, lowest bits first unless an order is given; codes of 4 or 8 bits lie within a word."""

import numpy as np

WORD_BITS = 32


def unpack_words(words: np.ndarray, axis: int, bits: int = 4, order: tuple[int, ...] | None = None) -> np.ndarray:
    """The codes of int32 words, uint8; `axis` becomes 32 / bits times as long.

    order[f]: the index, among the codes of a word, of the code in bit field f, lowest bits first; ascending by default.
    """
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    fields = WORD_BITS // bits
    codes = np.empty((*words.shape, fields), np.uint8)
    for field, place in enumerate(order or range(fields)):
        codes[..., place] = words >> np.uint32(bits * field) & np.uint32((1 << bits) - 1)
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1), -1, axis)


def unpack_stream(words: np.ndarray, axis: int, count: int, bits: int) -> np.ndarray:
    """The first `count` codes along `axis` of int32 words, uint8; codes of 1 to 8 bits follow each other across the ends of words."""
    if WORD_BITS % bits == 0:
        return unpack_words(words, axis, bits)[(slice(None),) * axis + (slice(count),)]
    words = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    fields = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), axis=-1, count=count * bits, bitorder="little")
    codes = np.packbits(fields.reshape(*words.shape[:-1], count, bits), axis=-1, bitorder="little")
    return np.moveaxis(codes[..., 0], -1, axis)


def pack_words(codes: np.ndarray, axis: int) -> np.ndarray:
    """The inverse of `unpack_words` in ascending order: int32 words of codes of 4 bits, padded with zeros to whole words."""
    codes, fields = np.moveaxis(codes, axis, -1), WORD_BITS // 4
    missing = -codes.shape[-1] % fields
    padded = np.concatenate([codes, np.zeros((*codes.shape[:-1], missing), codes.dtype)], axis=-1) if missing else codes
    by_word = padded.reshape(*padded.shape[:-1], -1, fields)
    words = np.zeros(by_word.shape[:-1], np.uint32)
    for field in range(fields):
        words |= by_word[..., field].astype(np.uint32) << np.uint32(4 * field)
    return np.ascontiguousarray(np.moveaxis(words.view(np.int32), -1, axis))
