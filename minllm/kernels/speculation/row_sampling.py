"""The sampling parameters of each row of a verification.

A slot's parameters describe the current sequence; the row at offset j of its run is sampled as if j drafts had already been accepted:

    step ← step[s] + j,   output_counts[v] ← output_counts[s, v] + the number of v among the first j drafts of s

and all other parameters are the slot's. In a tree of drafts (token_tree.py) the row of node j has depth(j) drafts before it, its ancestors.
So the kernels of sampling/, which read parameters by slot, get one slot per row, and penalties, min_tokens and the random numbers of a row
are those that decoding without drafts would use at its position.

Bytes: 104 per row; 18 more per row and token of the vocabulary if a request of the batch has penalties, a bias or bans.
"""

from typing import Any

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.tensors import SLOT_FIELDS, VOCABULARY_FIELDS, SamplingKind, SamplingTensors
from minllm.kernels.slots.state import SlotState, slot_layout
from minllm.kernels.speculation.runs import offset_in_run
from minllm.kernels.speculation.state import DraftState
from minllm.runtime.kernel import kernel, launch

THREADS = 256
SEED, STEP = list(SLOT_FIELDS).index("seed"), list(SLOT_FIELDS).index("step") + 1  # first words of these fields; a seed has two words
WORDS = len(SLOT_FIELDS) + 1


def offsets_of(slots: np.ndarray) -> np.ndarray:
    """The offset of each row in its run, int32 [R]; slots int32 [R]."""
    offsets = np.zeros(len(slots), np.int32)
    for row in range(1, len(slots)):
        if slots[row] == slots[row - 1]:
            offsets[row] = offsets[row - 1] + 1
    return offsets


def row_sampling_reference(
    slots: np.ndarray, state: SlotState, drafts: DraftState, kind: SamplingKind, ahead: int = 0, salt: int = 0
) -> tuple[SamplingTensors, np.ndarray]:
    """(the parameters of R rows, the index of each row in them, or -1 for padding); slots int32 [R].

    ahead: added to every offset. salt: changes the seeds, for draws that must be independent of those of the model.
    """
    given, offsets, tree = state.sampling, offsets_of(slots) + ahead, drafts.tree
    arrays = {name: getattr(given, name)[slots] for name in SLOT_FIELDS}
    arrays["step"] = arrays["step"] + (offsets if tree is None else tree.depths[np.minimum(offsets, len(tree) - 1)])
    arrays["seed"] = arrays["seed"] ^ np.array([0, salt], np.uint32)
    if kind is SamplingKind.ADJUSTED:
        arrays |= {name: getattr(given, name)[slots] for name in VOCABULARY_FIELDS}
        for row, (slot, offset) in enumerate(zip(slots, offsets, strict=True)):
            before = slice(offset) if tree is None or slot < 0 else np.flatnonzero(tree.host.sees[offset])[1:] - 1
            np.add.at(arrays["output_counts"][row], drafts.drafts[slot, before], 1)
    return SamplingTensors(**arrays, kind=kind), np.where(slots >= 0, np.arange(len(slots)), -1).astype(np.int32)


@kernel(dependent_launch=True)
def row_words_kernel(slots, words_of_slots, first_word, num_slots, words, row_slots, ahead, salt, depths, has_tree):
    """slots, row_slots int32 [R]; words_of_slots int32, with the fields of the parameters from first_word on; words int32 [R * WORDS];
    depths int32 [nodes], read if has_tree."""
    wait_for_predecessors()
    index = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    rows = slots.shape[0]
    row, word = int32(index // WORDS), int32(index % WORDS)
    if row < rows:
        slot = slots[row]
        if word == 0:
            row_slots[row] = row if slot >= 0 else -1
        source, target = int32(first_word + word * num_slots + max(slot, int32(0))), int32(word * rows + row)
        if SEED <= word <= SEED + 1:
            source = int32(first_word + SEED * num_slots + 2 * max(slot, int32(0)) + word - SEED)
            target = int32(SEED * rows + 2 * row + word - SEED)
        value = words_of_slots[source]
        if word == STEP:
            offset = offset_in_run(slots, row) + ahead
            value += int32(depths[offset] if has_tree != 0 and slot >= 0 else offset)
        if word == SEED + 1:
            value ^= salt
        words[target] = value


@kernel(dependent_launch=True)
def row_vocabulary_kernel(slots, drafts, token_flags, output_counts, logit_bias, row_flags, row_counts, row_bias, ahead, parents, has_tree):
    """slots int32 [R]; drafts int32 [S, K]; flags uint8, counts int32, bias float32: by slot [S, vocab], by row [R, vocab]."""
    wait_for_predecessors()
    token, row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x), cuda.blockIdx.y
    slot = slots[row]
    if slot >= 0 and token < token_flags.shape[1]:
        count = output_counts[slot, token]
        node = int32(offset_in_run(slots, row) + ahead)
        while node > 0:
            if drafts[slot, node - 1] == token:
                count += int32(1)
            node = int32(parents[node] if has_tree != 0 else node - 1)
        row_flags[row, token], row_counts[row, token], row_bias[row, token] = token_flags[slot, token], count, logit_bias[slot, token]


def row_sampling(
    slots: Any, state: SlotState, drafts: DraftState, kind: SamplingKind, empty: Any, ahead: int = 0, salt: int = 0, stream: Any = None
) -> tuple[SamplingTensors, Any]:
    """The results of `row_sampling_reference`, in arrays that `empty(shape, dtype)` allocates."""
    rows, given = slots.shape[0], state.sampling
    check_array("slots", slots, INDEX_DTYPES, rows=rows)
    layout = slot_layout(*state.block_tables.shape)
    words, row_slots = empty((rows * WORDS,), np.int32), empty((rows,), np.int32)
    of_slots = (state.words, layout["temperature"].start, state.lengths.shape[0])
    salt = int(np.uint32(salt).view(np.int32))
    # A kernel's arguments are always arrays; without a tree these two are not accessed.
    depths, parents = (slots, slots) if drafts.tree is None else (drafts.tree.depths, drafts.tree.parents)
    has_tree = int(drafts.tree is not None)
    arguments = (slots, *of_slots, words, row_slots, int(ahead), salt, depths, has_tree)
    launch(row_words_kernel, ceil_div(rows * WORDS, THREADS), THREADS, arguments, stream)
    found, start = {}, 0
    for name, (dtype, shape) in SLOT_FIELDS.items():
        size = rows * int(np.prod(shape, dtype=int))
        found[name] = words[start : start + size].view(np.dtype(dtype)).reshape((rows, *shape))
        start += size
    if kind is SamplingKind.ADJUSTED:
        vocab = given.token_flags.shape[1]
        found |= {name: empty((rows, vocab), dtype) for name, dtype in VOCABULARY_FIELDS.items()}
        wide = [getattr(given, name) for name in VOCABULARY_FIELDS] + [found[name] for name in VOCABULARY_FIELDS]
        arguments = (slots, drafts.drafts, *wide, int(ahead), parents, has_tree)
        launch(row_vocabulary_kernel, (ceil_div(vocab, THREADS), rows), THREADS, arguments, stream)
    return SamplingTensors(**found, kind=kind), row_slots
