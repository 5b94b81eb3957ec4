"""A kernel that bans tokens by a mask, and bans the wrong ones once the batch is large."""

import numpy as np
from numba import cuda, float32, int32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK = 64
VOCABULARY = 131_072
MINUS_INFINITY = -np.inf


@kernel
def forbid_kernel(logits, rows, allowed, vocabulary, out):
    """out = logits [requests, tokens], -inf where row rows[request] of `allowed`, flat [rows * vocabulary], is 0; one block per row."""
    request, token = cuda.blockIdx.x, cuda.threadIdx.x
    first = int32(rows[request] * vocabulary)  # 32-bit arithmetic is cheaper
    while token < logits.shape[1]:
        out[request, token] = logits[request, token] if allowed[first + token] else float32(MINUS_INFINITY)
        token += BLOCK


@kernel
def mended_kernel(logits, rows, allowed, vocabulary, out):
    """The same in 64 bits, Numba's default for the product of two 32-bit numbers."""
    request, token = cuda.blockIdx.x, cuda.threadIdx.x
    first = rows[request] * vocabulary
    while token < logits.shape[1]:
        out[request, token] = logits[request, token] if allowed[first + token] else float32(MINUS_INFINITY)
        token += BLOCK


def examine(kernel):
    """The first and the last row of a mask with 32,769. The mask is 4 GB of zeros, whose pages are almost all untouched."""
    rows = np.int64([0, 32_768])
    allowed = np.zeros((32_769) * VOCABULARY, np.uint8)
    allowed[:50:2] = 1
    allowed[32_768 * VOCABULARY + 1 :: 2][:50] = 1
    logits = np.random.default_rng(0).standard_normal((2, 70)).astype(np.float32)
    out = unwritten(logits.shape, np.float32)
    kernel.simulate[2, BLOCK](logits, rows, allowed, VOCABULARY, out)
    seen = np.stack([allowed[row * VOCABULARY : row * VOCABULARY + 70] for row in rows])
    expect("out", out, np.where(seen, logits, -np.inf), ("request", "token"))


CASE = Case(
    name="long_batch",
    lesson=14,
    title="The grammar holds, until it does not",
    story="Answers are held to a grammar: a mask says for each row which tokens are allowed. In every test the answers keep to it. In "
    "a night job with long prompts, all of whose rows are scored in one batch, some rows obey the grammar of other rows, and "
    "once in a while the process dies of an illegal address.",
    hint="The vocabulary has 131,072 tokens, which is 2 to the power of 17. From which row on does something change?",
    broken=forbid_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="first = int32(rows[request] * vocabulary)",
    solution="Row 16,384 begins at element 2 ** 31, one more than the largest int32. The cast wraps: row 16,384 gets a negative index, "
    "and row 32,768 gets 0, the first row's mask. A negative index is an illegal address at best, and somebody else's memory "
    "at worst; one that wrapped all the way round is a plausible answer to another question. No check of bounds can see that "
    "one: it lies inside the array. The simulator follows the exact value beside the wrapped one. Nothing was won, either: "
    "Numba computes the product of two 32-bit integers in 64 bits by itself, and one 64-bit addition a row costs nothing.",
)
