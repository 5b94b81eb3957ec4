"""Greedy decoding with a split vocabulary: the token of the largest logit over all ranks.

    token = first_r + token_rp   of the largest value_rp over ranks r and parts p; the lowest token among equals

and NOT_FINITE or NOTHING_ALLOWED where no token can be chosen, as in kernels/sampling/argmax.py: a part with NaN has the value +inf.

Each rank reduces its own logits to a value and a token per part (kernels/sampling/argmax.py), and all ranks gather these: 8 bytes per
part and row instead of 4 per logit. This file has the reduction over the gathered values, one warp per row, as in the last stage of argmax.
"""

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import (
    NO_TOKEN,
    NOT_FINITE,
    NOTHING_ALLOWED,
    THREADS,
    argmax_parts_kernel,
    check_logits,
    check_slots,
    chosen_token,
    parts_of,
    warp_argmax,
)  # fmt: skip
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP


def argmax_of_own_reference(logits, columns):
    """(values float32 [R, 1], tokens int32 [R, 1]) of a rank's largest logits; logits [R, size], of which the first `columns` count."""
    x = np.where(np.isnan(logits), np.float32(np.inf), logits)
    x[:, columns:] = -np.inf
    tokens = np.argmax(x, axis=1)[:, None].astype(np.int32)
    return np.take_along_axis(x, tokens, axis=1), tokens


def argmax_of_ranks_reference(values, tokens, slots, size):
    """The token of each row, int32 [R], from values float32 and tokens int32 [ranks, R, parts]; rank r's first token is r * size.

    The token is 0 for slot -1.
    """
    ranks, rows, _ = values.shape
    values, tokens = (one.transpose(1, 0, 2).reshape(rows, -1) for one in (values, tokens + np.arange(ranks)[:, None, None] * size))
    best = values.max(axis=1, keepdims=True)
    chosen = np.where(values == best, tokens, NO_TOKEN).min(axis=1)
    chosen = np.where(best[:, 0] == np.inf, NOT_FINITE, np.where(best[:, 0] == -np.inf, NOTHING_ALLOWED, chosen))
    return np.where(slots >= 0, chosen, 0).astype(np.int32)


@kernel(dependent_launch=True)
def argmax_of_ranks_kernel(values, tokens, slots, size, out):
    """values float32, tokens int32 [ranks, R, parts]; slots, out int32 [R]. One warp per row."""
    wait_for_predecessors()
    row = cuda.blockIdx.x
    parts = values.shape[2]
    best = float32(-np.inf)
    best_token = int32(NO_TOKEN)
    at = int32(cuda.threadIdx.x)
    while at < values.shape[0] * parts:
        rank = at // parts
        value = values[rank, row, at - rank * parts]
        token = int32(tokens[rank, row, at - rank * parts] + rank * size)
        if value > best or (value == best and value > float32(-np.inf) and token < best_token):
            best = value
            best_token = token
        at += WARP
    best, best_token = warp_argmax(best, best_token)
    if cuda.threadIdx.x == 0:
        out[row] = chosen_token(slots[row], best, best_token)


def argmax_of_own(logits, columns, values, tokens, stream=None):
    """Write the largest of each part of a rank's logits float32 [R, size] to values float32 and tokens int32 [R, parts_of(size)].

    columns: the number of logits of a row that count; those after them are padding.
    """
    check_logits(logits)
    rows, size = logits.shape
    check_array("values", values, (np.dtype(np.float32),), rows=rows, parts=parts_of(size))
    check_array("tokens", tokens, (np.dtype(np.int32),), rows=rows, parts=parts_of(size))
    launch(argmax_parts_kernel, (parts_of(size), rows), THREADS, (logits, int(columns), values, tokens), stream)


def argmax_of_ranks(values, tokens, slots, size, out, stream=None):
    """Write the token of each row to out int32 [R]; arguments as in argmax_of_ranks_reference."""
    check_array("values", values, (np.dtype(np.float32),), ranks=None, rows=None, parts=None)
    ranks, rows, parts = values.shape
    check_array("tokens", tokens, (np.dtype(np.int32),), ranks=ranks, rows=rows, parts=parts)
    check_slots(slots, rows)
    check_array("out", out, (np.dtype(np.int32),), rows=rows)
    check(0 < size and ranks * size < NO_TOKEN, f"{ranks} ranks of {size} tokens: ids must fit int32")
    launch(argmax_of_ranks_kernel, rows, WARP, (values, tokens, slots, int(size), out), stream)
