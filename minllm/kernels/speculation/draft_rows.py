"""The rows of a draft model, one per run, and the tokens that they draw.

    run_slots       out[i] ← the slot of run i, counted over the rows of a step; a row of padding is a run of slot -1, as is a missing run
    store_drafts    drafts[s, index] ← the token drawn for slot s,   log_q[s, index] ← the distribution it was drawn from, if it is kept
    store_children  drafts of the children of a level of a draft tree ← the likeliest tokens after each of its nodes
    room_for_drafts the number of drafts per run with room for the key of the token before them; later ones would be useless

Bytes: a few per run, and 8 per token of the vocabulary with distributions. Threads to data: one per row; for distributions, one per token
of the vocabulary and run.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.speculation.distribution import FLOAT
from minllm.kernels.speculation.runs import begins_run, offset_in_run
from minllm.kernels.speculation.state import DraftState
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch

THREADS = 256


def first_rows(slots: np.ndarray) -> list[int]:
    """The first row of each run; each row of padding counts as a run; slots int32 [R]."""
    return [row for row in range(len(slots)) if row == 0 or slots[row] < 0 or slots[row - 1] != slots[row]]


def run_slots_reference(slots: np.ndarray, count: int, each: int = 1) -> np.ndarray:
    """The slots of the first `count` runs, each repeated `each` times, int32 [count * each]; slots int32 [R]. Missing runs give -1."""
    found = slots[first_rows(slots)][:count]
    return np.concatenate([found, np.full(count - len(found), -1, np.int32)]).repeat(each)


def store_drafts_reference(tokens: np.ndarray, slots: np.ndarray, index: int, drafts: DraftState, log_q: np.ndarray | None = None) -> None:
    """Store draft number `index` of B slots, in place; tokens, slots int32 [B], log_q float32 [B, vocab]. Slot -1 is padding.

    A token below 0, of a row from which none could be chosen, is stored as 0, to which log_q gives all probability (distribution.py).
    """
    used = slots >= 0
    drafts.drafts[slots[used], index] = np.maximum(tokens[used], 0)
    if log_q is not None:
        drafts.log_q[slots[used], index] = log_q[used]


def store_children_reference(
    tokens: np.ndarray, slots: np.ndarray, first_node: int, drafts: DraftState, log_q: np.ndarray | None = None
) -> None:
    """Store the children of neighbouring nodes of drafts.tree, in place: child i of a row's node gets the row's token i.

    tokens int32 [R, most]: for each row, best first; slots int32 [R]: runs of rows that computed the nodes from first_node on. log_q
    float32 [R, vocab]: the distributions that the tokens were drawn from, stored by node.
    """
    tree, node = drafts.tree, first_node
    for row, slot in enumerate(slots):
        node = node + 1 if row and slots[row - 1] == slot else first_node
        if slot >= 0:
            first, count = tree.first_child[node], tree.num_children[node]
            drafts.drafts[slot, first - 1 : first - 1 + count] = tokens[row, :count]
            if log_q is not None:
                drafts.log_q[slot, node] = log_q[row]


def room_for_drafts_reference(slots: np.ndarray, lengths: Array, room: np.ndarray, num_drafts: int) -> np.ndarray:
    """The number of drafts that a draft model can make for each run, in its first row, 0 in other rows: int32 [R].

    slots int32 [R]; lengths int32 [S]: tokens of each slot; room int32 [runs]: number of tokens that the blocks of each run's sequence
    hold; runs of padding at the end may be omitted.
    """
    counts = np.zeros(len(slots), np.int32)
    for row, tokens in zip(first_rows(slots), room, strict=False):
        if slots[row] >= 0:
            counts[row] = min(max(tokens - (lengths[slots[row]] - 1), 0), num_drafts)
    return counts


@cuda.jit(device=True)
def run_number(slots, row):
    """The number of runs, including padding, before the run that begins at this row."""
    number = int32(0)
    for before in range(row):
        if slots[before] < 0 or begins_run(slots, before):
            number += int32(1)
    return number


@kernel(dependent_launch=True)
def room_for_drafts_kernel(slots, lengths, room, num_drafts, counts):
    """slots, counts int32 [R]; lengths int32 [S]; room int32 [runs]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0]:
        count = int32(0)
        if begins_run(slots, row):
            number = run_number(slots, row)
            if number < room.shape[0]:
                count = min(max(room[number] - (lengths[slots[row]] - 1), int32(0)), int32(num_drafts))
        counts[row] = count


@kernel(dependent_launch=True)
def run_slots_kernel(slots, each, out):
    """slots int32 [R]; out int32 [runs * each]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0] and (slots[row] < 0 or begins_run(slots, row)):
        number = run_number(slots, row)
        if number * each < out.shape[0]:
            for i in range(each):
                out[number * each + i] = slots[row]
    if row == slots.shape[0]:  # the thread after the last row fills in the missing runs
        for missing in range(run_number(slots, row) * each, out.shape[0]):
            out[missing] = -1


@kernel(dependent_launch=True)
def store_drafts_kernel(tokens, slots, index, drafts):
    """tokens, slots int32 [B]; drafts int32 [S, K]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0] and slots[row] >= 0:
        drafts[slots[row], index] = max(tokens[row], 0)


@kernel(dependent_launch=True)
def store_children_kernel(tokens, slots, first_node, first_child, num_children, drafts):
    """tokens int32 [R, most]; slots int32 [R]; first_child, num_children int32 [nodes]; drafts int32 [S, K]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0] and slots[row] >= 0:
        node = first_node + offset_in_run(slots, row)
        for i in range(num_children[node]):
            drafts[slots[row], first_child[node] - 1 + i] = tokens[row, i]


@kernel(dependent_launch=True)
def store_log_q_kernel(log_q, slots, index, log_q_of_slots):
    """log_q float32 [B, vocab]; slots int32 [B]; log_q_of_slots float32 [S, K, vocab]. The index grows by one per neighbouring row of a
    slot."""
    wait_for_predecessors()
    row, token = cuda.blockIdx.y, int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    slot = slots[row]
    if slot >= 0 and token < log_q.shape[1]:
        log_q_of_slots[slot, index + offset_in_run(slots, row), token] = log_q[row, token]


def run_slots(slots, out, stream=None, each: int = 1) -> None:
    """Write the result of `run_slots_reference` to out int32 [runs * each]; both arrays NumPy or both on one device."""
    check_array("slots", slots, INDEX_DTYPES, rows=None)
    check_array("out", out, INDEX_DTYPES, runs=None)
    launch(run_slots_kernel, ceil_div(slots.shape[0] + 1, THREADS), THREADS, (slots, int(each), out), stream)


def store_children(tokens, slots, first_node: int, drafts: DraftState, log_q=None, stream=None) -> None:
    """Store drafts, in place; arguments as in `store_children_reference`, all NumPy or all on one device."""
    rows, tree = slots.shape[0], drafts.tree
    check_array("slots", slots, INDEX_DTYPES, rows=rows)
    check_array("tokens", tokens, INDEX_DTYPES, rows=rows, most=None)
    arguments = (tokens, slots, int(first_node), tree.first_child, tree.num_children, drafts.drafts)
    launch(store_children_kernel, ceil_div(rows, THREADS), THREADS, arguments, stream)
    if log_q is not None:
        store_log_q(log_q, slots, first_node, drafts, stream)


def store_log_q(log_q, slots, index: int, drafts: DraftState, stream) -> None:
    """Store the distributions log_q [B, vocab] by slot, from this index on."""
    vocab, count = drafts.log_q.shape[2], slots.shape[0]
    check_array("log_q", log_q, FLOAT, rows=count, vocab=vocab)
    launch(store_log_q_kernel, (ceil_div(vocab, THREADS), count), THREADS, (log_q, slots, int(index), drafts.log_q), stream)


def room_for_drafts(slots, lengths, room, num_drafts: int, counts, stream=None) -> None:
    """Write the result of `room_for_drafts_reference` to counts int32 [R]; all arrays NumPy or all on one device."""
    for name, array in (("lengths", lengths), ("room", room)):
        check_array(name, array, INDEX_DTYPES, entries=None)
    check_array("counts", counts, INDEX_DTYPES, rows=slots.shape[0])
    launch(room_for_drafts_kernel, ceil_div(slots.shape[0], THREADS), THREADS, (slots, lengths, room, int(num_drafts), counts), stream)


def store_drafts(tokens, slots, index: int, drafts: DraftState, log_q=None, stream=None) -> None:
    """Store drafts, in place; arguments as in `store_drafts_reference`, all NumPy or all on one device."""
    count = slots.shape[0]
    check_array("tokens", tokens, INDEX_DTYPES, rows=count)
    check_array("slots", slots, INDEX_DTYPES, rows=count)
    launch(store_drafts_kernel, ceil_div(count, THREADS), THREADS, (tokens, slots, int(index), drafts.drafts), stream)
    if log_q is not None:
        store_log_q(log_q, slots, index, drafts, stream)
