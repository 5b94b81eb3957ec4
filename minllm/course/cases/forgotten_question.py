"""An engine with drafts answers well for a while, then as though it had never seen the question."""

import numpy as np
from numba import cuda

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch
from minllm.runtime.kernel import kernel

ROUNDS = 3
NUM_DRAFTS = 3
PROMPT = [3, 1, 4, 1, 5, 9]


@kernel
def roll_back_kernel(counts, num_rows, lengths):
    """After a verification of num_rows[s] tokens, of which counts[s] stay; lengths[s] tokens are in the cache. All int32 [B]."""
    sequence = cuda.threadIdx.x
    if sequence < lengths.shape[0]:
        if counts[sequence] < num_rows[sequence]:
            lengths[sequence] = counts[sequence]


@kernel
def mended_kernel(counts, num_rows, lengths):
    """The same; what was in the cache before the verification stays there."""
    sequence = cuda.threadIdx.x
    if sequence < lengths.shape[0]:
        if counts[sequence] < num_rows[sequence]:
            lengths[sequence] -= num_rows[sequence] - counts[sequence]


def next_token(cached):
    """The model: the token after those in the cache depends on each of them and on their order."""
    return int(sum((i + 1) * token for i, token in enumerate(cached)) % 50)


def decoded(count):
    """The prompt's continuation, token by token, without drafts."""
    text = list(PROMPT)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(PROMPT) :]


def examine(kernel):
    """Request a's drafts are all right; the second draft of request b's second step is wrong."""
    right = decoded(ROUNDS * (NUM_DRAFTS + 1) + 1)
    cache, lengths = np.zeros((2, 64), np.int32), np.int32([len(PROMPT)] * 2)
    cache[:, : len(PROMPT)] = PROMPT
    texts = [right[:1], right[:1]]
    for step in range(ROUNDS):
        counts, num_rows = np.zeros(2, np.int32), np.full(2, NUM_DRAFTS + 1, np.int32)
        for request, text in enumerate(texts):
            drafts = right[len(text) : len(text) + NUM_DRAFTS]
            if (request, step) == (1, 1):
                drafts[1] += 1
            start = lengths[request]
            cache[request, start : start + 1 + NUM_DRAFTS] = [text[-1], *drafts]
            chosen = [next_token(cache[request, : start + i + 1]) for i in range(NUM_DRAFTS + 1)]
            counts[request] = 1 + np.cumprod(np.equal(chosen[:-1], drafts)).sum()
            text += chosen[: counts[request]]
        lengths += num_rows
        kernel.simulate[1, 32](counts, num_rows, lengths)
    said = []
    for name, text in zip("ab", texts, strict=True):
        verdict = "right" if text == right[: len(text)] else f"expected {right[: len(text)]}, got {text}"
        said.append(f"request {name}: {verdict}")
    if any("got" in line for line in said):
        raise Mismatch("\n".join(said))


CASE = Case(
    name="forgotten_question",
    lesson=19,
    title="What was the question?",
    story="With n-gram drafts on, an assistant that quotes documents works for hours. Other chats begin well. Then, after some words or "
    "after some pages, the answer goes off on a tangent: fluent, friendly, and about something else, as though nobody had asked "
    "anything. At temperature 0 it differs from the answer without drafts from that word on. No error is logged, and memory is sane.",
    hint="What does a verification add to the length of a sequence, and what is the length if one of its drafts is wrong? Write down "
    "both for a prompt of 6 tokens, 4 rows and 2 tokens that stay.",
    broken=roll_back_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="lengths[sequence] = counts[sequence]",
    solution="The rows of a verification enter the cache before anybody knows which of them stay, so the length has to go back by the rows "
    "that were rejected. Here it is set to the number of tokens that stay: right for a sequence that began with this step, and for no "
    "other. From then on the model sees these two or three tokens in place of the prompt, and new keys overwrite the prompt's. A step "
    "whose drafts are all right never takes the branch, so texts that quote are fine. A rollback restores a length; it never resets one. "
    "The engine avoids the branch: lengths on the device only grow, by what is accepted (`advance_spans`).",
)
