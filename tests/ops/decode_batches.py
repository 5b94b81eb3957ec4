"""Decode batches whose tokens and block tables the host knows; in the engine `Ops.load_rows` takes them from slots."""

import numpy as np

from minllm.kernels.kv.move_window import window_of_rows
from minllm.ops.batch import Batch, RecentTokens


def decode_batch(token_ids, positions, block_tables, block_size, rings=None, residual_window=0):
    """The arrays, on the host, for one new token of each of B sequences: token_ids, positions int32 [B], block_tables [B, max_blocks].

    rings: int32 [B], the ring of each sequence if the cache has a residual_window.
    """
    count, recent = len(token_ids), None
    if residual_window:
        rings = rings.astype(np.int32)
        recent = RecentTokens(*window_of_rows(positions, positions + 1, rings, residual_window), rings=rings)
    rows = np.arange(count + 1, dtype=np.int32)
    slots = block_tables[rows[:-1], positions // block_size] * block_size + positions % block_size
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots.astype(np.int32),
        query_start=rows,
        context_lens=positions + np.int32(1),
        block_tables=block_tables,
        logits_rows=rows[:-1],
        max_query_len=1,
        max_context_len=int(positions.max()) + 1,
        num_decodes=count,
        recent=recent,
    )
