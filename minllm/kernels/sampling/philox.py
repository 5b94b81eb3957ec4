"""Counter-based random numbers: Philox-4x32-10, and Gumbel noise made from them.

Philox is a bijection of a 128-bit counter under a 64-bit key: ten rounds of two 32x32-bit products; the halves of these are
exchanged and mixed with the key. A number depends only on (key, counter): no state to keep, split or save, and all processors agree.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, sections 3.3 and 4.3.

    key = seed,  counter = (token id // 4, step, 0, 0),  word = token id % 4

A 32-bit word w becomes a uniform v = (w + 1/2) / 2^32 and standard Gumbel noise g = -log(-log(1 - v)). Large noise, which decides draws,
comes from small v, where float32 is most precise: the largest value is about 22.9, and the tail keeps the resolution of w.
"""

import math

import numpy as np
from numba import cuda, float32, uint32, uint64

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9  # the golden ratio, in units of 2^-32
WEYL_1 = 0xBB67AE85  # sqrt(3) - 1
ROUNDS = 10
TWO_TO_MINUS_32 = 2.0**-32
LARGEST_UNIFORM = 1.0 - 2.0**-24  # the largest float32 below 1


def philox_reference(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox-4x32-10 of uint32 counters [..., 4] under keys [..., 2] (broadcast): uint32 [..., 4]."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    multiplier_0, multiplier_1, weyl_0, weyl_1 = map(np.uint64, (MULTIPLIER_0, MULTIPLIER_1, WEYL_0, WEYL_1))
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    for _ in range(ROUNDS):
        product_0, product_1 = multiplier_0 * c0, multiplier_1 * c2
        c0, c1, c2, c3 = (product_1 >> half) ^ c1 ^ k0, product_1 & mask, (product_0 >> half) ^ c3 ^ k1, product_0 & mask
        k0, k1 = (k0 + weyl_0) & mask, (k1 + weyl_1) & mask
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def gumbel_reference(seed: np.ndarray, step: int | np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """The noise of rows for ascending token ids [n], float32 [..., n]; seed uint32 [..., 2]; step [...]: the tokens generated before."""
    quads, step = token_ids >> 2, np.asarray(step)
    is_first = np.ones(len(quads), bool)  # whether a token is the first one of its quad
    is_first[1:] = quads[1:] != quads[:-1]
    distinct = quads[is_first]
    counter = np.zeros((*step.shape, len(distinct), 4), np.uint32)
    counter[..., 0] = distinct
    counter[..., 1] = step[..., None]
    words = philox_reference(counter, np.asarray(seed, np.uint32)[..., None, :])[..., np.cumsum(is_first) - 1, token_ids & 3]
    uniform = words.astype(np.float32) * np.float32(TWO_TO_MINUS_32) + np.float32(TWO_TO_MINUS_32 / 2)
    uniform = np.minimum(uniform, np.float32(LARGEST_UNIFORM))
    return -np.log(-np.log1p(-uniform))


@cuda.jit(device=True)
def philox_4x32(c0, c1, c2, c3, k0, k1):
    """Philox-4x32-10 of one counter (c0..c3) under one key (k0, k1): a tuple of four uint32."""
    for _ in range(ROUNDS):
        product_0 = uint64(MULTIPLIER_0) * uint64(c0)
        product_1 = uint64(MULTIPLIER_1) * uint64(c2)
        c0 = uint32((product_1 >> uint64(32)) ^ c1 ^ k0)
        c1 = uint32(product_1 & uint64(0xFFFFFFFF))
        c2 = uint32((product_0 >> uint64(32)) ^ c3 ^ k1)
        c3 = uint32(product_0 & uint64(0xFFFFFFFF))
        k0 = uint32((uint64(k0) + uint64(WEYL_0)) & uint64(0xFFFFFFFF))
        k1 = uint32((uint64(k1) + uint64(WEYL_1)) & uint64(0xFFFFFFFF))
    return c0, c1, c2, c3


@cuda.jit(device=True)
def gumbel(word):
    """Standard Gumbel noise, float32, from one random uint32."""
    uniform = min(float32(word) * float32(TWO_TO_MINUS_32) + float32(TWO_TO_MINUS_32 / 2), float32(LARGEST_UNIFORM))
    return -math.log(-math.log1p(-uniform))
