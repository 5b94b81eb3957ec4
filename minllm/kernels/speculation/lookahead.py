"""Lookahead decoding: the model drafts for itself, from n-grams that it computes along with its text.

A step computes, besides the newest token, a window of guesses for the positions after it, and some n-grams to verify. The window has N - 1
levels of W columns; (0, 0) is the newest token, and (l, w) guesses the token l + w positions after it. Column w hangs below (0, w), which
follows (0, 0) .. (0, w - 1): TokenTree.lookahead is the mask. With y(l, w) the model's choice after (l, w), each step

    adds the n-grams         (0, w), (1, w) .. (N - 2, w), y(N - 2, w)             of all columns to the sequence's pool
    advances the window      (l, w) ← (l + 1, w) and (N - 2, w) ← y(N - 2, w)      to one position after the new newest token
    drafts                   the G most recent n-grams of the pool that begin with the newest token, without it

The first level is a Jacobi iteration of old guesses, and the last level is the model's choice after them; n-grams that the model has
computed once are likely to be its text when it reaches their first token. This needs no draft model and no data store; it costs
W (N - 1) + G (N - 1) rows. The y are drawn by the sampler with the random numbers of their own positions, so the iteration converges
towards the text that will be sampled.

Source: Fu, Bailis, Stoica, Zhang, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", ICML 2024 (arXiv
2402.02057), sections 3.1 to 3.3. The first level also hangs below the newest token, so its right guesses are accepted like any draft.

Bytes per run: 4 W N POOL to search the pool for the window's n-grams, 4 POOL to draft. Threads to data: one block per run; each thread
reads every 128th n-gram.
"""

from dataclasses import dataclass

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.kernels.speculation.state import DraftState
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128
POOL = 512  # n-grams per slot; new ones overwrite the oldest


@dataclass(frozen=True)
class LookaheadState:
    """The n-gram pools of S slots, and the parameters W, N and G of the paper."""

    pool: Array  # int32 [S, POOL, N] n-grams, all different
    added: Array  # int32 [S] number of n-grams added since the sequence began; the i-th is at i % POOL
    window: int  # W, columns of the window
    ngram_size: int  # N, tokens per n-gram
    guesses: int  # G, the most n-grams verified per step

    @classmethod
    def make(cls, zeros, num_slots: int, window: int, ngram_size: int, guesses: int) -> "LookaheadState":
        """Allocate with `zeros(shape, dtype)`."""
        return cls(zeros((num_slots, POOL, ngram_size), np.int32), zeros((num_slots,), np.int32), window, ngram_size, guesses)

    @property
    def window_nodes(self) -> int:
        """Nodes of the window, including the newest token."""
        return (self.ngram_size - 1) * self.window


def lookahead_reference(
    slots: np.ndarray, newest_tokens: Array, drafts: DraftState, computed: np.ndarray, chosen: np.ndarray, state: LookaheadState
) -> np.ndarray:
    """Write the drafts of each run's slot, and return their number in the run's first row, 0 in other rows: int32 [R].

    slots int32 [R]; newest_tokens int32 [S]; computed int32 [T], chosen int32 [R]: the token of each row, and the sampler's choice after
    it. A run without its whole window, as after a prompt, does not change window and pool.
    """
    counts, levels, nodes = np.zeros(len(slots), np.int32), state.ngram_size - 1, state.window_nodes
    for first, length in runs_of(slots):
        slot = slots[first]
        if length >= nodes:
            rows = slice(first, first + nodes)
            last = chosen[rows][-state.window :]
            grid = np.vstack([computed[rows].reshape(levels, state.window), last])  # [N, W]
            for ngram in grid.T:
                add_ngram(state, slot, ngram)
            drafts.drafts[slot, : nodes - 1] = grid[1:].reshape(-1)[1:]
        found = find_ngrams(state, slot, newest_tokens[slot])
        drafts.drafts[slot, nodes - 1 : nodes - 1 + found.size] = found.reshape(-1)
        counts[first] = nodes - 1 + found.size
    return counts


def add_ngram(state: LookaheadState, slot: int, ngram: np.ndarray) -> None:
    """Add an n-gram to a slot's pool, in place of the oldest, unless the pool has it already."""
    pool, added = state.pool[slot], state.added[slot]
    if not (pool[:added] == ngram).all(axis=1).any():
        pool[added % POOL] = ngram
        state.added[slot] += 1


def find_ngrams(state: LookaheadState, slot: int, token: int) -> np.ndarray:
    """The newest n-grams of a pool that begin with `token`, without that token: int32 [up to G, N - 1]."""
    pool, added = state.pool[slot], state.added[slot]
    from_newest = np.arange(added - 1, max(0, added - POOL) - 1, -1) % POOL
    matching = from_newest[pool[from_newest, 0] == token]
    return pool[matching[: state.guesses], 1:]


@cuda.jit(device=True)
def is_in_pool(pool, slot, index, row, column, window, computed, chosen):
    """Whether an entry of a pool is the n-gram of a column; row: the run's first row."""
    levels = pool.shape[2] - 1
    for level in range(levels):
        if pool[slot, index, level] != computed[row + level * window + column]:
            return False
    return pool[slot, index, levels] == chosen[row + (levels - 1) * window + column]


@cuda.jit(device=True)
def add_window(pool, slot, total, row, window, computed, chosen, known):
    """Add the n-grams of a window that are not in the pool; returns the number ever added. known: int32 [1] in shared memory."""
    thread, levels = int32(cuda.threadIdx.x), int32(pool.shape[2] - 1)
    for column in range(window):
        if thread == 0:
            known[0] = 0
        cuda.syncthreads()
        index = thread
        while index < min(total, int32(POOL)):
            if is_in_pool(pool, slot, index, row, column, window, computed, chosen):
                known[0] = 1
            index += int32(THREADS)
        cuda.syncthreads()
        if known[0] == 0:
            if thread == 0:
                for level in range(levels):
                    pool[slot, total % POOL, level] = computed[row + level * window + column]
                pool[slot, total % POOL, levels] = chosen[row + (levels - 1) * window + column]
            total += int32(1)
        cuda.syncthreads()
    return total


@cuda.jit(device=True)
def draft_ngrams(pool, slot, total, token, drafts, first, guesses, matches):
    """Write the newest n-grams that begin with `token`, without it, as drafts from `first` on; returns their number in thread 0.
    matches: int32 [POOL] in shared memory, 1 for n-grams that begin with it, by age."""
    thread, levels = int32(cuda.threadIdx.x), int32(pool.shape[2] - 1)
    age = thread
    while age < POOL:
        matches[age] = 1 if age < total and pool[slot, (total - 1 - age) % POOL, 0] == token else 0
        age += int32(THREADS)
    cuda.syncthreads()
    age = thread
    while age < POOL:
        if matches[age] == 1:
            newer = int32(0)
            for other in range(age):
                newer += matches[other]
            if newer < guesses:
                for i in range(levels):
                    drafts[slot, first + newer * levels + i] = pool[slot, (total - 1 - age) % POOL, i + 1]
        age += int32(THREADS)
    found = int32(0)
    if thread == 0:
        for other in range(POOL):
            found += matches[other]
    return min(found, guesses)


@kernel(dependent_launch=True)
def lookahead_kernel(slots, newest_tokens, computed, chosen, pool, added, drafts, counts, window, guesses):
    """slots, chosen, counts int32 [R]; newest_tokens, added int32 [S]; computed int32 [T]; pool int32 [S, POOL, N]; drafts int32 [S, K]."""
    wait_for_predecessors()
    known, matches = cuda.shared.array(1, int32), cuda.shared.array(POOL, int32)
    row, thread, levels = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x), int32(pool.shape[2] - 1)
    if not begins_run(slots, row):
        if thread == 0:
            counts[row] = 0
        return
    slot, nodes = slots[row], int32(levels * window)
    total = added[slot]
    if run_length(slots, row) >= nodes:
        total = add_window(pool, slot, total, row, int32(window), computed, chosen, known)
        node = int32(thread + 1)
        while node < nodes:
            drafts[slot, node - 1] = computed[row + node + window] if node < nodes - window else chosen[row + node]
            node += int32(THREADS)
    found = draft_ngrams(pool, slot, total, newest_tokens[slot], drafts, int32(nodes - 1), int32(guesses), matches)
    if thread == 0:
        added[slot], counts[row] = total, nodes - 1 + found * levels


def lookahead(slots, newest_tokens, drafts: DraftState, computed, chosen, state: LookaheadState, counts, stream=None) -> None:
    """Write the drafts, and the result of `lookahead_reference` to `counts`; all arrays NumPy or all on one device."""
    rows, num_slots = slots.shape[0], newest_tokens.shape[0]
    for name, array in (("slots", slots), ("chosen", chosen), ("counts", counts)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    check_array("computed", computed, INDEX_DTYPES, tokens=None)
    check_array("pool", state.pool, INDEX_DTYPES, slots=num_slots, pool=POOL, ngram_size=state.ngram_size)
    check_array("added", state.added, INDEX_DTYPES, slots=num_slots)
    wanted = state.window_nodes - 1 + state.guesses * (state.ngram_size - 1)
    check(drafts.drafts.shape[1] == wanted, f"drafts has room for {drafts.drafts.shape[1]} of a slot; W, N and G make {wanted}")
    arrays = (slots, newest_tokens, computed, chosen, state.pool, state.added, drafts.drafts, counts)
    launch(lookahead_kernel, rows, THREADS, (*arrays, int(state.window), int(state.guesses)), stream)
