"""Keys in 8 bits with a scale each; after the first request they are read back too large or too small."""

import numpy as np
from numba import cuda, float32, int32, uint8

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

HEAD_DIM = 8
LEVELS = 255  # the largest code


@kernel
def append_kernel(key, slot_mapping, codes, scales):
    """Quantise key [tokens, HEAD_DIM] to codes [slots, HEAD_DIM] with scales [slots, 2], (scale, zero); one thread per token."""
    token = cuda.threadIdx.x
    slot = slot_mapping[token]
    low, high = key[token, 0], key[token, 0]
    for i in range(1, HEAD_DIM):
        low, high = min(low, key[token, i]), max(high, key[token, i])
    scale = (high - low) / float32(LEVELS)
    scales[token, 0], scales[token, 1] = scale, low
    for i in range(HEAD_DIM):
        codes[slot, i] = uint8(int32((key[token, i] - low) / scale + float32(0.5)))


@kernel
def mended_kernel(key, slot_mapping, codes, scales):
    """The same, with each scale stored beside its own codes."""
    token = cuda.threadIdx.x
    slot = slot_mapping[token]
    low, high = key[token, 0], key[token, 0]
    for i in range(1, HEAD_DIM):
        low, high = min(low, key[token, i]), max(high, key[token, i])
    scale = (high - low) / float32(LEVELS)
    scales[slot, 0], scales[slot, 1] = scale, low
    for i in range(HEAD_DIM):
        codes[slot, i] = uint8(int32((key[token, i] - low) / scale + float32(0.5)))


@kernel
def scores_kernel(query, codes, scales, slots, scores):
    """scores[t] = query . key of slot slots[t], the key as code * scale + zero; one thread per key. This kernel is correct."""
    t = cuda.threadIdx.x
    slot = slots[t]
    total = float32(0.0)
    for i in range(HEAD_DIM):
        total += query[i] * (float32(codes[slot, i]) * scales[slot, 0] + scales[slot, 1])
    scores[t] = total


def examine(kernel):
    """Append a prompt of three tokens, then three tokens one by one; then a query reads all six keys."""
    random = np.random.default_rng(0)
    sizes = np.float32([1, 4, 0.5, 2, 8, 1])[:, None]  # keys of different magnitude, so that their scales differ
    keys, query = random.standard_normal((6, HEAD_DIM)).astype(np.float32) * sizes, random.standard_normal(HEAD_DIM).astype(np.float32)
    slots = np.int32([0, 1, 2, 3, 8, 9])  # the second block is not adjacent to the first
    codes, scales = np.zeros((12, HEAD_DIM), np.uint8), unwritten((12, 2), np.float32)
    for new in ([0, 1, 2], [3], [4], [5]):
        kernel.simulate[1, len(new)](keys[new], slots[new], codes, scales)
    scores = unwritten((6,), np.float32)
    scores_kernel.simulate[1, 6](query, codes, scales, slots, scores)
    expect("scores", scores, keys.astype(np.float64) @ query, ("position",), tolerance=0.02)  # half a step of 8 bits, eight times


CASE = Case(
    name="louder_and_louder",
    lesson=13,
    title="Louder and louder",
    story="With the cache in 8 bits, the perplexity of a long text is as good as in 16, and so is the first word of each answer. Those "
    "after it are not: some answers repeat one word for ever, others ramble. It gets worse the longer an answer is.",
    hint="Perplexity reads a text in one go, from an empty cache: which slots do its tokens go to? And which slot does the one token of a "
    "decode step go to, and what is its number in the batch?",
    broken=append_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="scales[token, 0], scales[token, 1] = scale, low",
    solution="The codes go to the token's slot, and the scale to the token's number in the batch. For the first prompt in an empty cache "
    "the two are the same, which is what a test of perplexity runs. In a decode step the token's number is 0: each step overwrites "
    "the scale of the first key, so that this key grows and shrinks with every word, and the new key is read back with whatever stood "
    "beside its slot. In the simulator that place was never written, and the reader stops there. Whatever belongs to a slot "
    "goes by the slot: codes, scales and zeros alike.",
)
