"""Speculation with a draft model: the sequences whose drafts are all right are the first whose drafts are all wrong."""

import numpy as np
from numba import cuda, float32, int32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

VOCABULARY = 50
NUM_DRAFTS = 3


@kernel
def draft_kernel(history, lengths, keys, drafts):
    """drafts [B, k] after the tokens of history [B, W]; a key is its token here, and keys [B, W] is the draft model's cache."""
    sequence = cuda.threadIdx.x
    if sequence < lengths.shape[0]:
        newest = lengths[sequence] - 1
        token = history[sequence, newest]
        for i in range(drafts.shape[1]):
            keys[sequence, newest + i] = token
            total = float32(0)
            for position in range(newest + i + 1):
                total += keys[sequence, position]
            token = int32(total) % VOCABULARY
            drafts[sequence, i] = token


@kernel
def mended_kernel(history, lengths, keys, drafts):
    """The same, and the last draft's key: nobody else computes it, and if all drafts are right, the next round reads it."""
    sequence = cuda.threadIdx.x
    if sequence < lengths.shape[0]:
        newest = lengths[sequence] - 1
        token = history[sequence, newest]
        for i in range(drafts.shape[1] + 1):
            keys[sequence, newest + i] = token
            if i < drafts.shape[1]:
                total = float32(0)
                for position in range(newest + i + 1):
                    total += keys[sequence, position]
                token = int32(total) % VOCABULARY
                drafts[sequence, i] = token


def following(tokens, offset):
    """The token after others, as the model chooses; with an offset of 0 as the draft model does."""
    return (int(sum(tokens)) + offset) % VOCABULARY


def examine(kernel):
    """Two rounds for two sequences: the model agrees with the draft on the first one, and never on the second."""
    texts, offsets = [[4, 9, 2], [7, 1, 5]], (0, 1)
    keys = unwritten((2, 16), np.float32)
    for sequence, tokens in enumerate(texts):
        keys[sequence, : len(tokens) - 1] = tokens[:-1]
    for round_number in (1, 2):
        history, drafts = np.zeros((2, 16), np.int32), unwritten((2, NUM_DRAFTS), np.int32)
        for sequence, tokens in enumerate(texts):
            history[sequence, : len(tokens)] = tokens
        kernel.simulate[1, 32](history, np.int32([len(tokens) for tokens in texts]), keys, drafts)
        expected = np.zeros((2, NUM_DRAFTS), np.int32)
        for sequence, tokens in enumerate(texts):
            for i in range(NUM_DRAFTS):
                expected[sequence, i] = following([*tokens, *expected[sequence, :i]], 0)
        expect(f"drafts of round {round_number}", drafts, expected, ("sequence", "draft"))
        for tokens, offset, guesses in zip(texts, offsets, drafts, strict=True):
            for guess in guesses:
                tokens.append(following(tokens, offset))
                if tokens[-1] != guess:
                    break
            else:
                tokens.append(following(tokens, offset))


CASE = Case(
    name="punished_for_success",
    lesson=19,
    title="Punished for success",
    story="A draft model was trained on the answers of the large one, and guesses well in tests. In the engine nearly all of its "
    "drafts are right in the first steps of a request, and few later. A worse draft keeps its rate of acceptance to the end. The text is "
    "right throughout: the large model decides. Sequences whose drafts were all right once suffer most, and a restart of the request "
    "helps.",
    hint="A step verifies k drafts, all are right, and one token more is new. Which tokens did the draft model read to make those k "
    "drafts, and which token has it never read?",
    broken=draft_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="for i in range(drafts.shape[1]):",
    solution="To make k drafts the draft model reads the newest token and the first k - 1 drafts. The last draft is made and not read, so "
    "it leaves no key. If a draft is wrong, nobody misses it: the next round begins at or before its place and writes it. If all "
    "are right, the next round begins behind it, with the token that the large model added, and attends to a key that was never written: "
    "there is what the memory held before. Each perfect step leaves one more hole, so the draft is punished for success. Let the draft "
    "model read the last draft too, a row more, or read two tokens at the beginning of the next round. The engine's draft model computes "
    "every row that the large model computes, which has the same effect. The text never shows this bug: only the rate of acceptance does.",
)
