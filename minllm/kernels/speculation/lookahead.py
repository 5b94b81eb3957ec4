"""Lookahead decoding: the model drafts for itself, from n-grams that it computes beside its text.

A step computes, besides the newest token, a window of guesses for the places after it and some n-grams to verify. The window has N - 1
levels of W columns, of which (0, 0) is the newest token; (l, w) guesses the token l + w places after it. Column w hangs below (0, w), which
follows (0, 0) .. (0, w - 1): TokenTree.lookahead is the mask. With y(l, w) what the model chooses after (l, w), each step

    adds the n-grams         (0, w), (1, w) .. (N - 2, w), y(N - 2, w)             of all columns to the sequence's pool
    moves the window on      (l, w) ← (l + 1, w) and (N - 2, w) ← y(N - 2, w)      one place after the next newest token's
    drafts                   the G most recent n-grams of the pool that begin with the newest token, without it

The first level is a Jacobi iteration of old guesses, the last one is what the model now makes of them; n-grams that it has computed once
are likely to be what it says when it comes to their first token. No draft model and no data store; the price is W (N - 1) + G (N - 1) rows.
The y are tokens of the sampler with the random numbers of their own places, so the iteration runs towards the text that will be sampled.

Source: Fu, Bailis, Stoica, Zhang, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", ICML 2024 (arXiv
2402.02057), sections 3.1 to 3.3. One block per run. A few thousand bytes per run: the pool is read once per added n-gram and once to draft.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.kernels.speculation.runs import runs_of
from minllm.kernels.speculation.state import DraftState

POOL = 512  # n-grams of each slot, of which the oldest are overwritten


@dataclass(frozen=True)
class LookaheadState:
    """The pools of S slots, and the letters of the paper."""

    pool: Any  # int32 [S, POOL, N] n-grams, all different
    added: Any  # int32 [S] n-grams added since the sequence began; number i lies at i % POOL
    window: int  # W, columns
    ngram_size: int  # N
    guesses: int  # G

    @classmethod
    def make(cls, zeros, num_slots: int, window: int, ngram_size: int, guesses: int) -> "LookaheadState":
        """Allocate with `zeros(shape, dtype)`."""
        return cls(zeros((num_slots, POOL, ngram_size), np.int32), zeros((num_slots,), np.int32), window, ngram_size, guesses)

    @property
    def window_nodes(self) -> int:
        """Nodes of the window, the newest token included."""
        return (self.ngram_size - 1) * self.window


def lookahead_reference(
    slots: np.ndarray, newest_tokens: np.ndarray, drafts: DraftState, computed: np.ndarray, chosen: np.ndarray, state: LookaheadState
) -> np.ndarray:
    """Write the drafts of each run's slot, and return their number in its first row, 0 in others: int32 [R].

    slots int32 [R]; newest_tokens int32 [S]; computed int32 [T], chosen int32 [R]: the token of each row, and what the sampler chose after
    it. A run without its whole window, as after a prompt, leaves window and pool as they are.
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
    """Add an n-gram to a pool that lacks it, in place of the oldest."""
    pool, added = state.pool[slot], state.added[slot]
    if not (pool[:added] == ngram).all(axis=1).any():
        pool[added % POOL] = ngram
        state.added[slot] += 1


def find_ngrams(state: LookaheadState, slot: int, token: int) -> np.ndarray:
    """The newest n-grams of a pool that begin with a token, without it: int32 [up to G, N - 1]."""
    pool, added = state.pool[slot], state.added[slot]
    from_newest = np.arange(added - 1, max(0, added - POOL) - 1, -1) % POOL
    matching = from_newest[pool[from_newest, 0] == token]
    return pool[matching[: state.guesses], 1:]
