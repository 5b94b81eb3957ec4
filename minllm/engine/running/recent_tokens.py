"""The arrays of a batch that locate the newest tokens, for caches with a residual window.

A prompt step works in scratch memory, a decode step in the rings (see cache/residual_window.py).
"""

from collections.abc import Sequence

import numpy as np

from minllm.kernels.attention.residual_window.reference import ring_blocks, window_start
from minllm.kernels.kv.move_window import window_of_rows
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.ops.protocol import RecentTokens


def recent_of_spans(spans: Sequence, residual_window: int) -> RecentTokens:
    """For the new tokens of B sequences (NewTokens: token_ids, start and ring): each has its window followed by its new tokens."""
    slots, lengths, tables, loads, stores, used = [], [], [], [], [], 0
    for span in spans:
        end, ring = span.start + len(span.token_ids), span.ring * ring_blocks(residual_window)
        first = int(window_start(span.start, residual_window))  # the first position in the scratch memory
        blocks = range(first // TOKEN_GROUP, -(-end // TOKEN_GROUP))
        place = {block: used + i for i, block in enumerate(blocks)}
        in_ring = {block: ring + block % ring_blocks(residual_window) for block in blocks}
        loads += [(in_ring[block], place[block]) for block in blocks if block * TOKEN_GROUP < span.start]
        kept = max(span.start, int(window_start(end, residual_window))) // TOKEN_GROUP  # older ones are stored, or outside the window
        stores += [(place[block], in_ring[block]) for block in blocks if block >= kept]
        slots.append(used * TOKEN_GROUP + np.arange(span.start, end) - first)
        lengths.append(end - first)
        tables.append(list(place.values()))
        used += len(blocks)
    return RecentTokens(
        slot_mapping=np.concatenate(slots).astype(np.int32),
        context_lens=np.array(lengths, np.int32),
        block_tables=side_by_side(tables),
        loads=np.array(loads, np.int32) if loads else None,
        stores=np.array(stores, np.int32),
    )


def recent_of_decode(positions: np.ndarray, rings: np.ndarray, residual_window: int) -> RecentTokens:
    """For one new token of each of B sequences at these positions, int32 [B], in these rings, int32 [B]."""
    rings = rings.astype(np.int32)
    slots, lengths, tables = window_of_rows(positions, positions + 1, rings, residual_window)
    return RecentTokens(slots, lengths, tables, rings=rings)


def side_by_side(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Stack block tables: int32 [B, max_blocks]; the padding is block 0, which is never read."""
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded
