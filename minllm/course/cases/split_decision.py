"""Each rank adds up what all ranks have sent, beginning with its own."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.runtime.kernel import kernel
from minllm.sim import simulate_ranks, unwritten

THREADS, RANKS = 32, 4


@kernel
def add_kernel(out, rank, messages):
    """out = the sum of all ranks' messages, which have arrived; one thread per element."""
    i, ranks = cuda.grid(1), len(messages)
    total = float32(0)
    for distance in range(ranks):
        total += messages[(rank + distance) % ranks][i]  # own first, so that the ranks do not all read the same
    out[i] = total


@kernel
def mended_kernel(out, rank, messages):
    """The same, in the same order on all ranks."""
    i = cuda.grid(1)
    total = float32(0)
    for peer in range(len(messages)):
        total += messages[peer][i]
    out[i] = total


def examine(kernel):
    """Four ranks add four messages."""
    messages = tuple(np.random.default_rng(0).standard_normal((RANKS, THREADS)).astype(np.float32))
    outs = unwritten((RANKS, THREADS), np.float32)
    simulate_ranks(kernel, 1, THREADS, [(outs[rank], rank, messages) for rank in range(RANKS)])
    different = [(rank, int((outs[rank] != outs[0]).sum())) for rank in range(1, RANKS) if (outs[rank] != outs[0]).any()]
    if different:
        (rank, count), worst = different[0], np.abs(outs - outs[0]).max()
        at = int(np.flatnonzero(outs[rank] != outs[0])[0])
        raise Mismatch(
            f"ranks 0 and {rank} differ in {count} of {THREADS} elements, by {worst:.1e} at most\n"
            f"element {at}: {outs[0, at]!s} on rank 0, {outs[rank, at]!s} on rank {rank}"
        )


CASE = Case(
    name="split_decision",
    lesson=20,
    title="A split decision",
    story="A model runs on four GPUs, each of which samples the next token for itself: same logits, same seed, same token. Every sum is "
    "right to the last digit that anybody checks. After some thousand tokens the text breaks down into noise, or all four "
    "hang: one of them has drawn the end of the text, and does not come to the next sum. On two GPUs it never happens.",
    hint="What are a + b + c and c + b + a in float32? And which float32 sums of two numbers depend on their order?",
    broken=add_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="total += messages[(rank + distance) % ranks][i]",
    solution="Sums of float32 round, so their value depends on the order of their terms, and here each rank has its own: the results "
    "differ in the last bit. That is no error by itself; that the ranks differ is. Where two logits are nearly equal, the last bit "
    "decides, and from then on the ranks' caches hold different texts. With two ranks nothing happens, because a + b = b + a. All ranks "
    "must add in one order, by rank; or each element is summed by one rank, which hands the result to the others.",
)
