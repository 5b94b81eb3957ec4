"""What a consumer does with its 64 rows between products: the softmax of a tile of scores, and at the end the division and the store.

The rows' state is in registers: maxima, sums of weights, and origins that huge logits are counted from, for each half of a thread's rows
(register_rows.py). A thread's sums are left in shared memory besides, where the row's other lanes find them at the end.
"""

import functools

from numba import cuda, float32, int32, int64

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, reciprocal_or_zero
from minllm.kernels.attention.common.register_rows import make_row_functions, make_store_row
from minllm.kernels.attention.flash_attention_3.producer import FIRST_POSITION, HEAD, ROWS, TOKEN, WORK_SLOTS, WORK_WORDS


def sum_count(shape):
    """Elements of the array of sums in shared memory: two a thread for the piece of work in hand, and for the one that is being stored."""
    return 4 * 128 * shape.consumers


@functools.cache
def make_rows(dtype, shape):
    """(start_rows, weigh_tile, rescale, pack_weights, store_rows): device functions of a consumer, for 16-bit `dtype`."""
    head_dim, key_tile, threads = shape.head_dim, shape.key_tile, 128 * shape.consumers
    row_functions = make_row_functions(key_tile, head_dim, dtype)
    mask_scores, subtract_origins, move_origins, raise_maxima, weigh_scores, rescale, pack_weights = row_functions
    store_row = make_store_row(head_dim, dtype)

    @cuda.jit(device=True)
    def start_rows(maxima, sums, origins):
        """The state of rows that have seen no key."""
        for half in range(2):
            maxima[half] = float32(MINUS_INFINITY)
            sums[half] = float32(0.0)
            origins[half] = float32(0.0)

    @cuda.jit(device=True)
    def leave_sums(sums, row_sums, piece, own):
        """Leave a thread's sums in shared memory.

        After every tile, and before the wait for the product in flight: ptxas keeps a store before a wait, and so has to compute the
        weights that the sums are made of before it. It would put all exponentials behind the wait otherwise, and nothing would overlap.
        """
        for half in range(2):
            row_sums[(2 * (piece & 1) + half) * threads + own] = sums[half]

    @cuda.jit(device=True)
    def weigh_tile(
        scores, maxima, sums, factors, origins, from_origins, row_sums, work, at, piece, first_key, consumer, own, scale, window
    ):  # fmt: skip
        """Scores of the keys from first_key on become weights; factors: of what was summed before. Whether rows count from origins now.

        Most tiles of keys are seen whole by all 64 rows, and need no mask.
        """
        first_position = work[at + FIRST_POSITION]
        last_seen_by_all = int32(first_position + consumer * 64)
        first_seen_by_all = int32(last_seen_by_all + 64 - window if window > 0 else 0)
        special = from_origins or first_key + key_tile - 1 > last_seen_by_all or first_key < first_seen_by_all
        if special:
            mask_scores(scores, first_key, int32(first_position + own // 32 * 16 + own % 32 // 4), window, int32(own % 32))
            if from_origins:
                subtract_origins(scores, origins)
        raise_maxima(scores, maxima, factors, scale)
        if special:
            from_origins = move_origins(scores, maxima, origins, scale)
        weigh_scores(scores, maxima, sums, factors, scale)
        leave_sums(sums, row_sums, piece, own)
        return from_origins

    @cuda.jit(device=True)
    def store_rows(acc, row_sums, out, work, piece, own):
        """out = acc / sums: the rows of a piece of work that belong to its sequence."""
        cuda.syncwarp()
        at = WORK_WORDS * (piece & (WORK_SLOTS - 1))
        token, head, rows = work[at + TOKEN], work[at + HEAD], work[at + ROWS]
        for half in range(2):
            row = int32(own // 32 * 16 + own % 32 // 4 + 8 * half)
            lanes = (2 * (piece & 1) + half) * threads + own // 4 * 4  # the first of four that share the row
            total = (row_sums[lanes] + row_sums[lanes + 1]) + (row_sums[lanes + 2] + row_sums[lanes + 3])
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            store_row(acc, 0, half, reciprocal_or_zero(total), out, index, row < rows, own % 32)

    return start_rows, weigh_tile, rescale, pack_weights, store_rows
