"""The weighted sum of a token's experts, to which each of their blocks adds its part."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.runtime.kernel import kernel
from minllm.sim import simulate

THREADS, TOKENS, CHOSEN, RUNS = 16, 3, 8, 4


@kernel
def combine_kernel(outputs, weights, out):
    """out[t] += the weighted outputs of token t's experts; out [T, H] is 0 before. A block per pair of a token and its expert."""
    pair, chosen, i = cuda.blockIdx.x, weights.shape[1], cuda.threadIdx.x
    token, place = pair // chosen, pair % chosen
    cuda.atomic.add(out, (token, i), weights[token, place] * outputs[pair, i])


@kernel
def mended_kernel(outputs, weights, out):
    """The same sum by one block per token, in the order of its choices; the other blocks have nothing to do."""
    pair, chosen, i = cuda.blockIdx.x, weights.shape[1], cuda.threadIdx.x
    token, place = pair // chosen, pair % chosen
    if place > 0:
        return
    total = float32(0)
    for place in range(chosen):
        total += weights[token, place] * outputs[pair + place, i]
    out[token, i] = total


def examine(kernel):
    """The same sum several times, with the blocks in another order each time, as a GPU may run them."""
    random = np.random.default_rng(0)
    outputs = random.standard_normal((TOKENS * CHOSEN, THREADS)).astype(np.float32)
    weights = random.random((TOKENS, CHOSEN)).astype(np.float32)
    outs = np.zeros((RUNS, TOKENS, THREADS), np.float32)
    for run, out in enumerate(outs):
        simulate(kernel, TOKENS * CHOSEN, THREADS, outputs, weights, out, order=run)
    different = int((outs != outs[0]).any(axis=0).sum())
    if different:
        token, i = (int(place) for place in np.argwhere((outs != outs[0]).any(axis=0))[0])
        values = ", ".join(dict.fromkeys(f"{value:.9g}" for value in outs[:, token, i]))
        raise Mismatch(
            f"{RUNS} runs with the same arrays differ in {different} of {outs[0].size} elements\nout[token {token}, element {i}]: {values}"
        )


CASE = Case(
    name="fickle_text",
    lesson=23,
    title="A fickle text",
    story="Temperature 0, one request at a time, the same prompt: on Monday the model answers with one text, on Tuesday with another, "
    "and both are good. The first hundred tokens agree. Models without experts, on the same GPU, always repeat themselves.",
    hint="In which order do the experts of a token end? And what are (a + b) + c and (c + a) + b in float32?",
    broken=combine_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="cuda.atomic.add(out",
    solution="Each block adds its part as soon as it has it, so atomics decide the order of the sum. Nothing is lost, and no thread "
    "reads a half-written number; but float32 sums round, and another order gives another last bit. Once two tokens are nearly equally "
    "likely that bit decides, and the texts part. One block per token that adds in the order of the token's choices gives the same bits in "
    "every run, and whatever other tokens are in the batch. A counting sort that takes its places from an atomic counter has the same "
    "fault one step earlier: the pairs of an expert change their order.",
)
