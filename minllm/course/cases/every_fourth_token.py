"""New keys are written to the paged cache, and one in every page is missing."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK_SIZE = 4  # tokens per page
HEAD_DIM = 8


@kernel
def append_kernel(key, position, key_cache, block_table):
    """Write key [head_dim] of the token at `position` to its slot in key_cache [pages, BLOCK_SIZE, head_dim]; one thread per element."""
    i = cuda.threadIdx.x
    page = block_table[(position + 1) // BLOCK_SIZE]
    key_cache[page, position % BLOCK_SIZE, i] = key[i]


@kernel
def mended_kernel(key, position, key_cache, block_table):
    """The same, with the page that contains the position itself."""
    i = cuda.threadIdx.x
    page = block_table[position // BLOCK_SIZE]
    key_cache[page, position % BLOCK_SIZE, i] = key[i]


@kernel
def scores_kernel(query, key_cache, block_table, scores):
    """scores[position] = query . key, one thread per position, as attention reads the cache. It is right."""
    position = cuda.threadIdx.x
    page = block_table[position // BLOCK_SIZE]
    total = float32(0.0)
    for i in range(HEAD_DIM):
        total += query[i] * key_cache[page, position % BLOCK_SIZE, i]
    scores[position] = total


def examine(kernel):
    """Write seven tokens one by one; then a query reads all of them."""
    random = np.random.default_rng(0)
    tokens = 7
    keys, query = (random.standard_normal(shape).astype(np.float32) for shape in ((tokens, HEAD_DIM), HEAD_DIM))
    block_table = np.int32([5, 2, 3])  # pages in arbitrary order
    key_cache, scores = unwritten((6, BLOCK_SIZE, HEAD_DIM), np.float32), unwritten((tokens,), np.float32)
    for position in range(tokens):
        kernel.simulate[1, HEAD_DIM](keys[position], np.int32(position), key_cache, block_table)
    scores_kernel.simulate[1, tokens](query, key_cache, block_table, scores)
    expect("scores", scores, keys.astype(np.float64) @ query, ("position",))


CASE = Case(
    name="every_fourth_token",
    lesson=8,
    title="The first answer is fine",
    story="After a restart the engine answers a little oddly, and the longer it runs the odder: words are forgotten, and now and then "
    "a word from another user's conversation turns up. Only texts of up to three tokens are always as they should be.",
    hint="Pages hold four tokens here. Write down page and offset for positions 2, 3 and 4. What did the page hold before, and whose "
    "was it?",
    broken=append_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="page = block_table[(position + 1) // BLOCK_SIZE]",
    solution="The page belongs to the next position. For three positions out of four the two are the same; the last one of each page "
    "goes to the last slot of the page after it. So each page ends with the key of four tokens before, and the first page "
    "with what its last owner left there, zeros at first. In the simulator, memory that was never written is known as such: "
    "the reader of the cache stops at the last slot of the first page. The line of the finding is where the mistake shows; "
    "the line to blame is in the other kernel.",
)
