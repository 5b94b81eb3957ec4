"""Prompts whose beginning is in the prefix cache are not recomputed, and sometimes an answer belongs to another user."""

import numpy as np
from numba import cuda

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

BLOCK_SIZE = 4  # tokens per block


@kernel
def plan_kernel(prompt_lens, found_blocks, first_new):
    """first_new[s]: the first token of prompt s to compute, if `found_blocks[s]` full blocks are in the cache."""
    sequence = cuda.threadIdx.x
    if sequence < prompt_lens.shape[0]:
        found = found_blocks[sequence] * BLOCK_SIZE
        first_new[sequence] = found


@kernel
def mended_kernel(prompt_lens, found_blocks, first_new):
    """The same, but a prompt's last token is always computed, with its whole block, because only whole blocks are shared."""
    sequence = cuda.threadIdx.x
    if sequence < prompt_lens.shape[0]:
        usable = (prompt_lens[sequence] - 1) // BLOCK_SIZE
        found = min(found_blocks[sequence], usable) * BLOCK_SIZE
        first_new[sequence] = found


@kernel
def last_rows_kernel(hidden, query_start, out):
    """out[s] = the hidden state after the last new token of sequence s, which determines its next token. It is right."""
    sequence = cuda.blockIdx.x
    out[sequence] = hidden[query_start[sequence + 1] - 1]


def examine(kernel):
    """Three prompts in a batch; all of the second one, two full blocks, is cached."""
    prompts = [[11, 12, 13, 14, 15], [21, 22, 23, 24, 25, 26, 27, 28], [31, 32]]
    prompt_lens, found_blocks = np.int32([5, 8, 2]), np.int32([1, 2, 0])
    first_new = unwritten((3,), np.int32)
    kernel.simulate[1, 32](prompt_lens, found_blocks, first_new)
    new = [prompt[first:] for prompt, first in zip(prompts, first_new)]
    query_start = np.cumsum([0, *map(len, new)]).astype(np.int32)
    hidden = np.concatenate(new).astype(np.float32)  # a hidden state of one number: its token
    out = unwritten((3,), np.float32)
    last_rows_kernel.simulate[3, 1](hidden, query_start, out)
    expect("the token that is continued", out, np.float32([prompt[-1] for prompt in prompts]), ("request",))


CASE = Case(
    name="someone_elses_answer",
    lesson=11,
    title="Somebody else's answer",
    story="Since prompts are kept, a question that is asked a second time is answered at once. Nearly always. Once in a while the answer "
    "fits a question that some other user has asked at the same moment. It happens to one in sixteen repeated questions, to those "
    "with a length of 16, 32, 48 tokens, and never to a question that is sent alone after a pause: that one stops the engine.",
    hint="A request that is found in the cache from its first to its last token: how many rows does it have in the batch? From which "
    "row is its next token chosen?",
    broken=plan_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="found = found_blocks[sequence] * BLOCK_SIZE",
    solution="The cache holds keys and values, and no logits. Where a prompt is a whole number of blocks and all of them are found, no "
    "token is left to compute: the request has no row in the batch, query_start is the same before and after it, and the row before "
    "its end is the last one of its neighbour, whose answer it continues. As the first of a batch it has no neighbour, and the row is "
    "-1. So at least one token is computed always; because only whole blocks are shared, that is the last block. The kernel that "
    "shows it, which takes the last rows, is right. Every engine with a prefix cache has met this bug, and tests it by name: "
    "the full hit.",
)
