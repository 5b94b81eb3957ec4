"""The beginning of each expert's pairs, found where two neighbours of the sorted order have different experts."""

import numpy as np
from numba import cuda

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

THREADS = 32


@kernel
def find_experts_kernel(experts, offsets):
    """offsets[e] = the first place of expert e in `experts` [P], sorted; offsets [E + 1] ends with P. A thread per place."""
    place, places = cuda.grid(1), experts.shape[0]
    if place >= places:
        return
    if place == 0 or experts[place] != experts[place - 1]:
        offsets[experts[place]] = place  # here an expert begins
    if place == places - 1:
        offsets[offsets.shape[0] - 1] = places


@kernel
def mended_kernel(experts, offsets):
    """The same, and an expert without pairs begins where the next one does."""
    place, places = cuda.grid(1), experts.shape[0]
    if place >= places:
        return
    before = experts[place - 1] if place > 0 else -1
    for expert in range(before + 1, experts[place] + 1):
        offsets[expert] = place
    if place == places - 1:
        for expert in range(experts[place] + 1, offsets.shape[0]):
            offsets[expert] = places


@kernel
def count_kernel(offsets, counts):
    """counts [E] = the pairs of each expert; a thread per expert. It is right."""
    expert = cuda.grid(1)
    if expert < counts.shape[0]:
        counts[expert] = offsets[expert + 1] - offsets[expert]


def examine(kernel):
    """A full batch, in which every expert has pairs, and a small one, in which expert 2 has none."""
    for experts in ([0, 0, 1, 2, 2, 3], [0, 1, 1, 3]):
        offsets, counts = unwritten((5,), np.int32), unwritten((4,), np.int32)
        kernel.simulate[1, THREADS](np.int32(experts), offsets)
        count_kernel.simulate[1, THREADS](offsets, counts)
        expect(f"pairs, {len(experts)} in all", counts, np.bincount(experts, minlength=4).astype(np.int32), ("expert",))


CASE = Case(
    name="wrong_when_quiet",
    lesson=23,
    title="Wrong when it is quiet",
    story="A model of 8 experts, of which each token takes 2, answers well at its busiest hour, and reads all long prompts correctly. At "
    "night, with one or two requests at a time, it writes nonsense, which depends on the step before; sometimes a kernel fails.",
    hint="Which experts have pairs in a step of thousands of tokens, and which in a step of two? Who writes the offset of an expert "
    "without any?",
    broken=find_experts_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="offsets[experts[place]] = place  # here an expert begins",
    solution="Only an expert with a pair begins somewhere, so only its offset is written. That of an expert without tokens keeps what "
    "the last step left there. It is also the end of the expert before, which now computes too few pairs, or those of others, or runs "
    "out of the array. With many tokens no expert is empty, so the bug hides under load. An expert without pairs begins where "
    "the next one does, so each boundary has to write the offsets of all experts between its two neighbours.",
)
