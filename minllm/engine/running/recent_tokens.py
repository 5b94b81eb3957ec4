"""The arrays of a batch that locate the newest tokens, for caches with a residual window.

A prompt step works in scratch memory, a decode step in the rings (see cache/residual_window.py).
"""

from collections.abc import Sequence

import numpy as np

from minllm.engine.running.block_tables import padded_block_tables
from minllm.kernels.attention.residual_window.reference import ring_blocks, window_start
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.ops.batch import RecentTokens


def recent_of_spans(spans: Sequence, residual_window: int) -> RecentTokens:
    """The arrays for NewTokens of B sequences; each sequence's window is followed by its new tokens."""
    slots, lengths, tables, loads, stores, used = [], [], [], [], [], 0
    for span in spans:
        end, ring = span.start + len(span.token_ids), span.ring * ring_blocks(residual_window)
        first = int(window_start(span.start, residual_window))  # the first position in the scratch memory
        blocks = range(first // TOKEN_GROUP, -(-end // TOKEN_GROUP))
        place = {block: used + i for i, block in enumerate(blocks)}
        in_ring = {block: ring + block % ring_blocks(residual_window) for block in blocks}
        loads += [(in_ring[block], place[block]) for block in blocks if block * TOKEN_GROUP < span.start]
        kept = max(span.start, int(window_start(end, residual_window))) // TOKEN_GROUP  # older blocks are stored, or outside the window
        stores += [(place[block], in_ring[block]) for block in blocks if block >= kept]
        slots.append(used * TOKEN_GROUP + np.arange(span.start, end) - first)
        lengths.append(end - first)
        tables.append(list(place.values()))
        used += len(blocks)
    return RecentTokens(
        slot_mapping=np.concatenate(slots).astype(np.int32),
        context_lens=np.array(lengths, np.int32),
        block_tables=padded_block_tables(tables),
        loads=np.array(loads, np.int32) if loads else None,
        stores=np.array(stores, np.int32),
    )
