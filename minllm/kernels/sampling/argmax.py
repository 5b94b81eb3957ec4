"""The largest logit of every row: greedy decoding, and the last stage of every random draw.

    token = min { v : x_v = max_w x_w }                 (the lowest id among equals)
    token = NOT_FINITE       if a logit is NaN or +inf: the forward has overflowed, and no logit of the row is to be trusted
    token = NOTHING_ALLOWED  if every logit is -inf

Both are negative, so no id stands for them. NaN counts as +inf, so finding it costs two instructions per logit and no pass of its own.

4 bytes per logit, read once; almost no arithmetic. A single block would be slow on a row of 128,256 logits, so a row is split over
several blocks: each writes the best of its part, and a second launch, one warp per row, reduces over the parts (recorded as "sampling",
variant "greedy", in docs/results/h200.json). A padding row, slot -1, gives 0.
Threads to data: each thread reads four neighbouring logits with one 128-bit load if rows are 16-byte aligned (vocab a multiple of 4).
"""

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import load_float32
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP

THREADS = 256
WARPS = THREADS // WARP
QUADS_PER_THREAD = 4  # a part is 256 threads x 4 loads x 4 tokens
PART = THREADS * QUADS_PER_THREAD * 4
NO_TOKEN = 2**31 - 1
NOTHING_ALLOWED, NOT_FINITE = -1, -2  # the results of rows from which no token can be chosen


def argmax_reference(logits: np.ndarray) -> np.ndarray:
    """The id of the largest logit of each row, NOTHING_ALLOWED or NOT_FINITE, int32 [R]; logits float32 [R, vocab]."""
    peaks = logits.max(axis=1)  # NaN if a logit is
    tokens = np.where(peaks == -np.inf, NOTHING_ALLOWED, np.argmax(logits, axis=1))
    return np.where(peaks < np.inf, tokens, NOT_FINITE).astype(np.int32)


def parts_of(vocab: int) -> int:
    """Number of blocks that share a row."""
    return -(-vocab // PART)


@cuda.jit(device=True)
def load_quad(logits, row, token):
    """Four float32 logits from [row, token] on; NaN beyond the end of the row. token is a multiple of 4."""
    vocab = logits.shape[1]
    x0 = x1 = x2 = x3 = float32(np.nan)
    if vocab & 3 == 0:
        if token < vocab:
            x0, x1, x2, x3 = load_float32(logits, row * vocab + token)
    else:
        if token < vocab:
            x0 = logits[row, token]
        if token + 1 < vocab:
            x1 = logits[row, token + 1]
        if token + 2 < vocab:
            x2 = logits[row, token + 2]
        if token + 3 < vocab:
            x3 = logits[row, token + 3]
    return x0, x1, x2, x3


@cuda.jit(device=True)
def nan_as_infinity(x):
    """x, or +inf for NaN."""
    return x if x == x else float32(np.inf)


@cuda.jit(device=True)
def chosen_token(slot, best, best_token):
    """The result of a row whose largest logit is `best`, that of best_token; NO_TOKEN if none is above -inf."""
    if slot < 0:  # a padding row
        return int32(0)
    if best == float32(np.inf):
        return int32(NOT_FINITE)
    return int32(NOTHING_ALLOWED) if best_token == NO_TOKEN else best_token


@cuda.jit(device=True)
def warp_argmax(value, token):
    """The largest value among a warp's lanes and its token, the lowest token among equals; the same in every lane."""
    # exercise: sampling.argmax
    for offset in (16, 8, 4, 2, 1):
        other_value = cuda.shfl_xor_sync(ALL_LANES, value, offset)
        other_token = cuda.shfl_xor_sync(ALL_LANES, token, offset)
        if other_value > value or (other_value == value and other_token < token):
            value = other_value
            token = other_token
    return value, token
    # end exercise


@cuda.jit(device=True)
def store_block_argmax(value, token, part_values, part_tokens):
    """Reduce over the block's threads and write the best of this block to part_*[row, part]."""
    warp_values = cuda.shared.array(WARPS, float32)
    warp_tokens = cuda.shared.array(WARPS, int32)
    thread = int32(cuda.threadIdx.x)
    value, token = warp_argmax(value, token)
    if thread & 31 == 0:
        warp_values[thread >> 5] = value
        warp_tokens[thread >> 5] = token
    cuda.syncthreads()
    if thread < WARP:
        value = float32(-np.inf)
        token = int32(NO_TOKEN)
        if thread < WARPS:
            value = warp_values[thread]
            token = warp_tokens[thread]
        value, token = warp_argmax(value, token)
        if thread == 0:
            part_values[cuda.blockIdx.y, cuda.blockIdx.x] = value
            part_tokens[cuda.blockIdx.y, cuda.blockIdx.x] = token


@kernel(dependent_launch=True)
def argmax_parts_kernel(logits, columns, part_values, part_tokens):
    """logits float32 [R, vocab], of which the first `columns` count; part_values float32, part_tokens int32 [R, parts]: the best of each
    part."""
    wait_for_predecessors()
    row = cuda.blockIdx.y
    first = int32(cuda.blockIdx.x * PART + cuda.threadIdx.x * 4)
    best = float32(-np.inf)
    best_token = int32(NO_TOKEN)
    for step in range(QUADS_PER_THREAD):
        token = int32(first + step * (THREADS * 4))
        quad = load_quad(logits, row, token)
        for i in range(4):
            x = nan_as_infinity(quad[i])
            if x > best and token + i < columns:
                best = x
                best_token = int32(token + i)
    store_block_argmax(best, best_token, part_values, part_tokens)


@kernel(dependent_launch=True)
def argmax_of_parts_kernel(part_values, part_tokens, slots, out):
    """part_values float32, part_tokens int32 [R, parts]; slots, out int32 [R]. One warp per row."""
    wait_for_predecessors()
    row = cuda.blockIdx.x
    slot = slots[row]
    best = float32(-np.inf)
    best_token = int32(NO_TOKEN)
    part = int32(cuda.threadIdx.x)
    while part < part_values.shape[1]:
        value = part_values[row, part]
        token = part_tokens[row, part]
        if value > best or (value == best and token < best_token):
            best = value
            best_token = token
        part += WARP
    best, best_token = warp_argmax(best, best_token)
    if cuda.threadIdx.x == 0:
        out[row] = chosen_token(slot, best, best_token)


def argmax(logits, slots, out, part_values, part_tokens, stream=None) -> None:
    """Write the result of argmax_reference to out int32 [R], and 0 for rows whose slot, int32 [R], is -1.

    Scratch: part_values float32, part_tokens int32 [R, parts_of(vocab)].
    """
    check_parts(logits, slots, out, part_values, part_tokens)
    rows, vocab = logits.shape
    launch(argmax_parts_kernel, (parts_of(vocab), rows), THREADS, (logits, vocab, part_values, part_tokens), stream)
    launch(argmax_of_parts_kernel, rows, WARP, (part_values, part_tokens, slots, out), stream)


def check_logits(logits) -> None:
    """Raise KernelArgumentError unless logits are float32 [rows, vocab] with at least one column."""
    fits = len(logits.shape) == 2 and logits.dtype == np.float32 and logits.shape[1] > 0
    check(fits, f"logits are {logits.dtype} {tuple(logits.shape)}; they must be float32 [rows, vocab] with vocab at least 1")


def check_slots(slots, rows: int) -> None:
    """Raise KernelArgumentError unless there is a slot for every row."""
    check(tuple(slots.shape) == (rows,) and slots.dtype == np.int32, f"slots are {slots.dtype} {slots.shape}; they must be int32 [{rows}]")


def check_parts(logits, slots, out, part_values, part_tokens) -> None:
    """Raise KernelArgumentError unless logits, output and scratch have matching shapes and the right dtypes."""
    check_logits(logits)
    rows, vocab = logits.shape
    check_slots(slots, rows)
    check(tuple(out.shape) == (rows,) and out.dtype == np.int32, f"out is {out.dtype} {out.shape}; it must be int32 [{rows}]")
    for array, dtype in ((part_values, np.float32), (part_tokens, np.int32)):
        fits = tuple(array.shape) == (rows, parts_of(vocab)) and array.dtype == dtype
        check(fits, f"scratch is {array.dtype} {array.shape}; it must be {np.dtype(dtype)} {(rows, parts_of(vocab))}")
