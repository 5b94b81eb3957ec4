"""Recent tokens whose groups become codes: sequences in scattered blocks, NaN where no group may be read, bytes that must stay."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.kv.move_window import move_window, window_of_rows
from minllm.kernels.kv.quantize_groups import quantize_groups, quantize_groups_reference
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP
from tests.kernels.attention.window_cases import scattered
from tests.kernels.guarded import bits, random
from tests.kernels.kv.quantized_cases import UNWRITTEN, on

WINDOW = 64


@dataclass(frozen=True)
class GroupCase:
    """`query_lens` new tokens of sequences with `context_lens` in all; a context of 0 is padding with one row."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    head_dim: int = 64
    kv_heads: int = 1
    block_size: int = 32

    def __str__(self):
        sizes = "-".join(f"{q}of{c}" for q, c in zip(self.query_lens, self.context_lens, strict=True))
        return f"{sizes}-{self.kv_heads}x{self.head_dim}-b{self.block_size}"


CASES = (
    GroupCase((1, 1, 1), (31, 32, 33)),  # only the second has a whole group
    GroupCase((1, 1, 0), (160, 128, 0), head_dim=32, kv_heads=2, block_size=64),
    GroupCase((70, 3), (70, 97), head_dim=96, block_size=96),  # two groups, and one that began before the chunk
    GroupCase((34,), (64,), head_dim=128, kv_heads=2),
    GroupCase((2,), (65,), head_dim=256),
)
GPU_CASES = CASES + (
    GroupCase((1,) * 77, tuple(range(1, 540, 7)), head_dim=128, kv_heads=8),
    GroupCase((1000, 1, 333), (1000, 640, 4001), head_dim=128, kv_heads=8, block_size=64),
)


def make_group_arrays(case, dtype):
    """(recent keys, recent values), (key cache, value cache), (query_start, context_lens, block_tables, recent_lens, recent_tables)."""
    shuffle = np.random.default_rng(11)
    first = [context - query for query, context in zip(case.query_lens, case.context_lens, strict=True)]
    recent_lens = [max(0, context - int(window_start(start, WINDOW))) for start, context in zip(first, case.context_lens, strict=True)]
    tables, blocks = scattered(case.context_lens, case.block_size, shuffle)
    recent_tables, recent_blocks = scattered(recent_lens, TOKEN_GROUP, shuffle)
    recents = random((2, recent_blocks, TOKEN_GROUP, case.kv_heads, case.head_dim), dtype, 12)
    for b, length in enumerate(recent_lens):  # the group under way is not to be read
        if length % TOKEN_GROUP:
            recents[:, recent_tables[b, length // TOKEN_GROUP], length % TOKEN_GROUP :] = np.nan
    form, caches = kv_format("kivi_int4", case.head_dim), []
    for by_channel in (True, False):
        cache = allocate(form, blocks, case.block_size, case.kv_heads, np.zeros, np.array, by_channel)
        cache.codes[:] = UNWRITTEN
        cache.scales.view(np.uint8)[:] = UNWRITTEN
        caches.append(cache)
    starts = np.cumsum([0, *(max(1, query) if not context else query for query, context in zip(*lengths(case), strict=True))])
    batch = (starts, case.context_lens, tables, recent_lens, recent_tables)
    return recents, caches, tuple(np.asarray(array, np.int32) for array in batch)


def lengths(case):
    """Both tuples of the case."""
    return case.query_lens, case.context_lens


def check_quantize_groups(case, dtype, device):
    """Codes and scales are the reference's to the bit, and no byte of another group is touched."""
    recents, caches, batch = make_group_arrays(case, dtype)
    found = [on(device, cache) for cache in caches]
    quantize_groups(*map(device.array, recents), *found, *map(device.array, batch), max_query_len=max(1, *case.query_lens))
    quantize_groups_reference(*recents, *caches, *batch)
    for ours, wanted in zip(found, caches, strict=True):
        np.testing.assert_array_equal(device.host(ours.codes), wanted.codes)
        np.testing.assert_array_equal(bits(device.host(ours.scales)), bits(wanted.scales))


def check_move_window(rows, window, device):
    """Slots, lengths and tables of rows at all kinds of positions, every fifth of them switched off."""
    shuffle = np.random.default_rng(rows)
    positions = shuffle.integers(0, 5 * window, rows).astype(np.int32)
    context_lens = np.where(np.arange(rows) % 5 == 3, 0, positions + 1).astype(np.int32)
    rings = shuffle.permutation(rows).astype(np.int32)
    expected = window_of_rows(positions, context_lens, rings, window)
    found = [device.array(np.full_like(array, -7)) for array in expected]
    move_window(*map(device.array, (positions, context_lens, rings)), *found, window)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(device.host(ours), wanted)
