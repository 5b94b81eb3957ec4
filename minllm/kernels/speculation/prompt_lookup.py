"""Prompt lookup (n-grams): drafts the tokens that followed the most recent earlier occurrence of the newest tokens.

    m = the largest number of newest tokens, from `shortest` to `longest`, that also occur together earlier
    e = the end of their most recent earlier occurrence:  h[e - m .. e) = h[n - m .. n),  e < n
    draft i = h[e + i], and beyond the known tokens the draft copies itself: a text with period n - e continues with that period

Texts that quote their prompt (code, summaries, answers from documents) repeat long parts of it. Source: Saxena, "Prompt Lookup Decoding",
2023; the copy that overlaps its own output is that of LZ77 (Ziv and Lempel 1977).

Bytes: 4 per token of the context. Threads to data: one block of threads per row; each thread compares at every 256th position.
"""

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import NO_TOKEN, warp_argmax
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.runs import begins_run, runs_of
from minllm.kernels.speculation.state import DraftState
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

THREADS = 256
WARPS = THREADS // WARP


def lookup_reference(tokens: np.ndarray, count: int, longest: int, shortest: int) -> np.ndarray:
    """`count` drafts after these tokens, int32 [count], or int32 [0] if there is no match."""
    length = len(tokens)
    for matched in range(min(longest, length - 1), shortest - 1, -1):
        earlier = np.lib.stride_tricks.sliding_window_view(tokens[:-1], matched)
        begins = np.flatnonzero((earlier == tokens[length - matched :]).all(axis=1))
        if len(begins):
            text, end = list(tokens), begins[-1] + matched
            for i in range(count):
                text.append(text[end + i])
            return np.array(text[length:], np.int32)
    return np.empty(0, np.int32)


def prompt_lookup_reference(slots: np.ndarray, state: SlotState, drafts: DraftState, longest: int, shortest: int) -> np.ndarray:
    """Write the drafts of each run's slot, and return their number in the run's first row, 0 in other rows: int32 [R]; slots int32 [R]."""
    counts = np.zeros(len(slots), np.int32)
    for first, _ in runs_of(slots):
        slot = slots[first]
        known = drafts.token_history[slot, : state.lengths[slot]]
        found = lookup_reference(known, drafts.drafts.shape[1], longest, shortest)
        drafts.drafts[slot] = 0
        drafts.drafts[slot, : len(found)] = found
        counts[first] = len(found)
    return counts


@cuda.jit(device=True)
def matching_tokens(token_history, slot, length, end, longest):
    """The number of tokens before `end` that equal those before `length`, at most `longest`."""
    matched = int32(0)
    while matched < longest and matched < end and token_history[slot, end - 1 - matched] == token_history[slot, length - 1 - matched]:
        matched += int32(1)
    return matched


@kernel(dependent_launch=True)
def prompt_lookup_kernel(slots, lengths, token_history, drafts, counts, longest, shortest):
    """slots, counts int32 [R]; lengths int32 [S]; token_history int32 [S, W]; drafts int32 [S, K]."""
    wait_for_predecessors()
    warp_matches, warp_distances = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, int32)
    row, thread = cuda.blockIdx.x, int32(cuda.threadIdx.x)
    if not begins_run(slots, row):
        if thread == 0:
            counts[row] = 0
        return
    slot = slots[row]
    length = min(lengths[slot], int32(token_history.shape[1]))
    best, best_distance = float32(0.0), int32(NO_TOKEN)
    distance = int32(thread + 1)  # from the end of the match to the end of the text
    while distance < length:
        matched = float32(matching_tokens(token_history, slot, length, int32(length - distance), longest))
        if matched >= float32(shortest) and matched > best:
            best, best_distance = matched, distance
        distance += THREADS
    best, best_distance = warp_argmax(best, best_distance)
    if thread & 31 == 0:
        warp_matches[thread >> 5], warp_distances[thread >> 5] = best, best_distance
    cuda.syncthreads()
    if thread == 0:
        for warp in range(1, WARPS):
            matched, distance = warp_matches[warp], warp_distances[warp]
            if matched > best or (matched == best and distance < best_distance):
                best, best_distance = matched, distance
        is_found = best > float32(0.0)
        for i in range(drafts.shape[1]):
            token = int32(0)
            if is_found:
                token = token_history[slot, length - best_distance + i] if i < best_distance else drafts[slot, i - best_distance]
            drafts[slot, i] = token
        counts[row] = drafts.shape[1] if is_found else 0


def prompt_lookup(slots, state: SlotState, drafts: DraftState, longest: int, shortest: int, counts, stream=None) -> None:
    """Write the drafts, and the result of `prompt_lookup_reference` to `counts`; all arrays NumPy or all on one device."""
    check(1 <= shortest <= longest, f"n-grams of {shortest} to {longest} tokens were asked for; give 1 or more, the shorter first")
    rows, num_slots = slots.shape[0], state.lengths.shape[0]
    check_array("slots", slots, INDEX_DTYPES, rows=rows)
    check_array("counts", counts, INDEX_DTYPES, rows=rows)
    check_array("drafts", drafts.drafts, INDEX_DTYPES, slots=num_slots, drafts=None)
    check_array("token_history", drafts.token_history, INDEX_DTYPES, slots=num_slots, tokens=None)
    arrays = (slots, state.lengths, drafts.token_history, drafts.drafts, counts)
    launch(prompt_lookup_kernel, rows, THREADS, (*arrays, int(longest), int(shortest)), stream)
