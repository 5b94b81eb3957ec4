"""Acceptance in a tree of drafts that were drawn: at each node one child after another is accepted or rejected.

The children x_1, x_2 .. of a node were drawn from the draft's distribution q without replacement (perturb.py); the model's distribution
there is p. With a uniform number u_i for each child, p_1 = p and q_1 = q:

    x_i is accepted if u_i < p_i(x_i) / q_i(x_i)
    if it is rejected,   p_(i+1)(v) ∝ max(p_i(v) - q_i(v), 0)      and      q_(i+1) is q_i without x_i, renormalised

The path continues at the accepted child. It ends at a row from which the sampler could choose no token, as in rejection.py. If a node's
children are all rejected, or if it has none, the last new token is drawn from the remaining p. Each rejection is a step of rejection.py, by
the theorem of which a token drawn in this way has the distribution p_i, whatever q_i is. So by induction from the last child to the first
the text has the distribution of the model. A child with q_i(x_i) = 0 (the draft has fewer tokens than children) is deterministic: it is
accepted with probability p_i(x_i), else p_(i+1) is p_i without it.

Sources: Miao et al., "SpecInfer", ASPLOS 2024, algorithm 2 (children drawn with replacement); Jeon et al., "Recursive Speculative
Decoding", 2024 (arXiv 2402.14160), section 3, and Z. Chen et al., "Sequoia", 2024, algorithm 2 (without).

Bytes: 8 per token of the vocabulary and rejected child, read and written again. Threads to data: one block per run; all its threads follow
the path together.
"""

import math

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.reduction import block_sum
from minllm.kernels.sampling.argmax import NO_TOKEN, THREADS, WARPS, warp_argmax
from minllm.kernels.sampling.philox import LARGEST_UNIFORM, TWO_TO_MINUS_32, gumbel, philox_4x32
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.speculation.distribution import FLOAT
from minllm.kernels.speculation.rejection import ACCEPTANCE, RESIDUAL, random_words, residual_noise, uniform_of
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.kernels.speculation.token_tree import TreeArrays
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP


def reject_tree_reference(
    p: np.ndarray, q: np.ndarray, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, parents: Array,
    sampling: SamplingTensors,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """(the token after each row, new tokens of each run in its first rows, the row that yielded each, their number), all int32 [R].

    p: log-probabilities of the model, float32 [R, vocab]; q: those of the draft at each node, float32 [S, K, vocab]; chosen: a draw from
    each row's p, int32 [R]; computed int32 [T], slots int32 [R], parents int32 [nodes]: as in accept_tree.py. The slots' seeds and steps
    are those before the run. After a run's new tokens the second array has unspecified values.
    """
    by_row, path, counts = chosen.copy(), np.arange(len(slots), dtype=np.int32), np.zeros(len(slots), np.int32)
    for first, length in runs_of(slots):
        slot, nodes = slots[first], [0]
        seed = sampling.seed[slot]
        while True:
            node, step = nodes[-1], int(sampling.step[slot]) + len(nodes) - 1
            is_last = chosen[first + node] < 0
            children = [] if is_last else [child for child in range(node + 1, length) if parents[child] == node]
            tokens = computed[first + np.array(children, int)]
            uniforms = uniform_of(random_words(seed, np.arange(len(children)), step, ACCEPTANCE))[:, 0]
            accepted, left = choose_child(np.exp(p[first + node]), np.exp(q[slot, node]) if children else None, tokens, uniforms)
            if accepted is None:
                break
            by_row[first + node] = tokens[accepted]
            nodes.append(children[accepted])
        if children and left.any():  # otherwise p = q except for rounding, and the draw from p is kept
            with np.errstate(divide="ignore"):
                by_row[first + node] = np.argmax(np.log(left) + residual_noise(seed, step, len(left)))
        path[first : first + len(nodes)] = first + np.array(nodes)
        counts[first] = len(nodes)
    return by_row, by_row[path], path, counts


def choose_child(p: np.ndarray, q: np.ndarray, tokens: np.ndarray, uniforms: np.ndarray) -> tuple[int | None, np.ndarray]:
    """(index of the accepted child, or None; the remaining p). p, q float32 [vocab]; tokens, uniforms [children]."""
    p, q = p.copy(), None if q is None else q.copy()
    total_p = total_q = np.float32(1)
    for number, (token, uniform) in enumerate(zip(tokens, uniforms, strict=True)):
        certain = not (q[token] > 0 and total_q > 0)
        share = np.float32(1) if certain else min(q[token] / total_q, np.float32(1))
        if total_p <= 0:
            break
        if uniform * share < p[token] / total_p:
            return number, p
        if certain:
            p[token] = 0
        else:
            p = np.maximum(p / total_p - q / total_q, np.float32(0))
            total_q -= q[token]
            q[token] = 0
        total_p = p.sum(dtype=np.float32)
    return None, p


@cuda.jit(device=True)
def child_uniform(seed, slot, step, number):
    """The uniform number, from 0 to 1, that decides whether a child is accepted."""
    word = philox_4x32(uint32(number), uint32(step), uint32(ACCEPTANCE), uint32(0), seed[slot, 0], seed[slot, 1])[0]
    return min(float32(word) * float32(TWO_TO_MINUS_32) + float32(TWO_TO_MINUS_32 / 2), float32(LARGEST_UNIFORM))


@cuda.jit(device=True)
def is_tried(computed, parents, first, node, child, token):
    """Whether an earlier sibling of a child has this token."""
    for elder in range(node + 1, child):
        if parents[elder] == node and computed[first + elder] == token:
            return True
    return False


@cuda.jit(device=True)
def subtract_child(p, q, row, slot, node, child, computed, parents, first, rejected, total_p, total_q, certain):
    """Replace p of a row by the remaining p after a child is rejected, not normalised; returns the thread's part of its sum. rejected: the
    number of children rejected before, 0 if p still holds logarithms."""
    vocab, token, total = int32(p.shape[1]), int32(cuda.threadIdx.x), float32(0.0)
    while token < vocab:
        left = p[row, token]
        if rejected == 0:
            left = math.exp(left)
        if certain:
            if token == computed[first + child]:
                left = float32(0.0)
        else:
            taken = float32(0.0)
            if not is_tried(computed, parents, first, node, child, token):
                taken = math.exp(q[slot, node, token]) / total_q
            left = max(left / total_p - taken, float32(0.0))
        p[row, token] = left
        total += left
        token += THREADS
    return total


@cuda.jit(device=True)
def draw_from(p, row, step, seed, slot, warp_values, warp_tokens):
    """A draw from the probabilities p[row], in thread 0; NO_TOKEN if all are 0. warp_* [WARPS] are in shared memory."""
    best, best_token, vocab = float32(-np.inf), int32(NO_TOKEN), int32(p.shape[1])
    token = int32(cuda.threadIdx.x * 4)
    while token < vocab:
        words = philox_4x32(uint32(token >> 2), uint32(step), uint32(RESIDUAL), uint32(0), seed[slot, 0], seed[slot, 1])
        for i in range(4):
            if token + i < vocab and p[row, token + i] > float32(0.0):
                score = math.log(p[row, token + i]) + gumbel(words[i])
                if score > best:
                    best, best_token = score, int32(token + i)
        token += 4 * THREADS
    best, best_token = warp_argmax(best, best_token)
    if cuda.threadIdx.x & 31 == 0:
        warp_values[cuda.threadIdx.x >> 5], warp_tokens[cuda.threadIdx.x >> 5] = best, best_token
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for warp in range(1, WARPS):
            if warp_values[warp] > best or (warp_values[warp] == best and warp_tokens[warp] < best_token):
                best, best_token = warp_values[warp], warp_tokens[warp]
    return best_token


@kernel(dependent_launch=True)
def reject_tree_kernel(p, q, chosen, computed, slots, parents, step, seed, by_row, tokens, path, counts):
    """p float32 [R, vocab]; q float32 [S, K, vocab]; chosen, slots, by_row, tokens, path, counts int32 [R]; computed int32 [T]; parents
    int32 [nodes]; step int32 [S], seed uint32 [S, 2]. Rows of p at which a child is rejected are overwritten."""
    wait_for_predecessors()
    warp_values, warp_tokens = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, int32)
    sums = cuda.shared.array(WARP, float32)
    first, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x)
    if not begins_run(slots, first):
        if thread == 0:
            counts[first] = 0
            if slots[first] < 0:
                by_row[first], tokens[first], path[first] = chosen[first], chosen[first], first
        return
    slot, length = slots[first], run_length(slots, first)
    row = int32(first + thread)
    while row < first + length:
        by_row[row], tokens[row], path[row] = chosen[row], chosen[row], row
        row += int32(THREADS)
    cuda.syncthreads()
    node, count, goes_on = int32(0), int32(0), True
    while goes_on:
        goes_on = False
        row, place = int32(first + node), int32(step[slot] + count)
        rejected, total_p, total_q, accepted = int32(0), float32(1.0), float32(1.0), int32(-1)
        for child in range(node + 1, length):
            if accepted < 0 and chosen[row] >= 0 and parents[child] == node and total_p > float32(0.0):
                token = computed[first + child]
                probability = p[row, token]
                if rejected == 0:
                    probability = math.exp(probability)
                mass = math.exp(q[slot, node, token])
                if is_tried(computed, parents, first, node, child, token):
                    mass = float32(0.0)
                certain = not (mass > float32(0.0) and total_q > float32(0.0))
                share = float32(1.0) if certain else min(mass / total_q, float32(1.0))
                if child_uniform(seed, slot, place, rejected) * share < probability / total_p:
                    accepted = int32(child)
                else:
                    cuda.syncthreads()  # all threads have read p before it changes
                    left = subtract_child(p, q, row, slot, node, child, computed, parents, first, rejected, total_p, total_q, certain)
                    total_p = block_sum(left, sums)
                    cuda.syncthreads()
                    if not certain:
                        total_q -= mass
                    rejected += int32(1)
        if accepted >= 0:
            if thread == 0:
                by_row[row], tokens[first + count], path[first + count] = computed[first + accepted], computed[first + accepted], row
            node, count, goes_on = accepted, int32(count + 1), True
        elif rejected > 0:
            token = draw_from(p, row, place, seed, slot, warp_values, warp_tokens)
            if thread == 0:
                if token != NO_TOKEN:
                    by_row[row] = token
                tokens[first + count], path[first + count] = by_row[row], row
        elif thread == 0:
            tokens[first + count], path[first + count] = chosen[row], row
    if thread == 0:
        counts[first] = count + 1


def reject_tree(
    p, q, chosen, computed, slots, tree: TreeArrays, sampling: SamplingTensors, by_row, tokens, path, counts, stream=None
) -> None:
    """Write the results of `reject_tree_reference` to the last four arrays, and overwrite p; all arrays NumPy or all on one device."""
    rows = slots.shape[0]
    check_array("p", p, FLOAT, rows=rows, vocab=None)
    check_array("q", q, FLOAT, slots=sampling.step.shape[0], drafts=None, vocab=p.shape[1])
    check_array("computed", computed, INDEX_DTYPES, tokens=None)
    named = dict(chosen=chosen, slots=slots, by_row=by_row, tokens=tokens, path=path, counts=counts)
    for name, array in named.items():
        check_array(name, array, INDEX_DTYPES, rows=rows)
    arrays = (p, q, chosen, computed, slots, tree.parents, sampling.step, sampling.seed, by_row, tokens, path, counts)
    launch(reject_tree_kernel, rows, THREADS, arrays, stream)
