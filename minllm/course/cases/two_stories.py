"""One prompt is continued twice, and both continuations go wrong at the same word."""

import numpy as np
from numba import cuda

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK_SIZE = 4  # tokens per block


@kernel
def write_kernel(tokens, context_lens, block_tables, holders, free_blocks, cache):
    """Write each sequence's next token to its slot; if the last block is full, take a new one. One thread per sequence.

    tokens, context_lens [S]; block_tables [S, 4]; holders [blocks]: number of sequences that hold a block; free_blocks: a list whose first
    element is the number of its blocks already taken; cache [blocks, BLOCK_SIZE].
    """
    s = cuda.threadIdx.x
    index, offset = context_lens[s] // BLOCK_SIZE, context_lens[s] % BLOCK_SIZE
    if offset == 0:
        block_tables[s, index] = free_blocks[1 + cuda.atomic.add(free_blocks, 0, 1)]
    cache[block_tables[s, index], offset] = tokens[s]


@kernel
def mended_kernel(tokens, context_lens, block_tables, holders, free_blocks, cache):
    """The same, but a shared block is copied before it is written: all of its holders except the last take a copy."""
    s = cuda.threadIdx.x
    index, offset = context_lens[s] // BLOCK_SIZE, context_lens[s] % BLOCK_SIZE
    if offset == 0:
        block_tables[s, index] = free_blocks[1 + cuda.atomic.add(free_blocks, 0, 1)]
    else:
        shared = block_tables[s, index]
        if cuda.atomic.sub(holders, shared, 1) > 1:
            own = free_blocks[1 + cuda.atomic.add(free_blocks, 0, 1)]
            for i in range(offset):
                cache[own, i] = cache[shared, i]
            block_tables[s, index] = own
            holders[own] = 1
        else:
            cuda.atomic.add(holders, shared, 1)  # the last holder keeps it
    cache[block_tables[s, index], offset] = tokens[s]


def examine(kernel):
    """A prompt of six tokens, continued by two sequences that share its two blocks, each with two tokens of its own."""
    cache = unwritten((6, BLOCK_SIZE), np.int32)
    cache[3], cache[1, :2] = [1, 2, 3, 4], [5, 6]
    block_tables = np.int32([[3, 1, 0, 0], [3, 1, 0, 0]])
    holders, free_blocks = np.int32([0, 2, 0, 2, 0, 0]), np.int32([0, 4, 2, 5, 0])
    context_lens = np.int32([6, 6])
    for tokens in ([71, 81], [72, 82], [73, 83]):
        kernel.simulate[1, 2](np.int32(tokens), context_lens, block_tables, holders, free_blocks, cache)
        context_lens += 1
    read = np.array([[cache[table[p // BLOCK_SIZE], p % BLOCK_SIZE] for p in range(9)] for table in block_tables])
    expected = np.int32([[1, 2, 3, 4, 5, 6, 71, 72, 73], [1, 2, 3, 4, 5, 6, 81, 82, 83]])
    suspects = [("both continuations wrote to the same slots, and the last one stayed.", np.array([expected[1], expected[1]]))]
    suspects[0][1][0, 8] = 73
    expect("the text that is read back", read, expected, ("continuation", "token"), suspects)


CASE = Case(
    name="two_stories",
    lesson=11,
    title="Two continuations, one story",
    story="Asked for two answers to one question, the engine writes two that begin differently. Then one of them goes on as if it "
    "had written the other one's first words. After a few words they part again, each with a text that makes no sense. With questions "
    "of some lengths it never happens.",
    hint="Two sequences with the same blocks: which of these blocks may be written, and by whom? Try questions of 4, 6 and 8 tokens with "
    "blocks of 4.",
    broken=write_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="cache[block_tables[s, index], offset] = tokens[s]",
    solution="Both continuations hold the blocks of their question, the last one half full, and both write their next token to the same "
    "slot of it. Whoever writes last is read by both. From the next block on each has its own, which is why they part again, and where "
    "the question fills its blocks exactly nothing is ever shared that is written. A full block never changes and may be shared by "
    "anyone; a block that is still being filled must have one holder. So whoever writes to a block with other holders takes a copy of "
    "it first: copy on write. The last holder needs none. No detector knows that a slot has two owners, because each access is a "
    "legal one; what finds it is reading back what was written.",
)
