"""With a residual window a prompt means the same whole, in chunks of any lengths and token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minllm.kernels.attention.residual_window.reference import attention_with_window_reference, window_start
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

LONGEST, WINDOW, HEADS, HEAD_DIM = 170, 32, 2, 32
BLOCKS = -(-LONGEST // TOKEN_GROUP)
TABLE = np.arange(BLOCKS, dtype=np.int32)[None]


def prompt(name, seed):
    """(query, key, value [LONGEST, heads, head_dim], the caches with the codes of all whole groups)."""
    random, form = np.random.default_rng(seed), kv_format(name, HEAD_DIM)
    query, key, value = random.standard_normal((3, LONGEST, HEADS, HEAD_DIM))
    whole = np.arange(LONGEST // TOKEN_GROUP * TOKEN_GROUP)
    caches = [allocate(form, BLOCKS, TOKEN_GROUP, HEADS, np.zeros, np.array, by_channel) for by_channel in (form.keys_by_channel, False)]
    for cache, x in zip(caches, (key, value), strict=True):
        if cache.by_channel:
            cache.put_groups(whole[::TOKEN_GROUP], x[whole].reshape(-1, TOKEN_GROUP, HEADS, HEAD_DIM))
        else:
            cache.put(whole, x[whole])
    return query, key, value, caches


def chunk_output(start, stop, numbers, sliding_window):
    """Attention of the tokens from `start` to `stop`, new together, in float64."""
    query, key, value, caches = numbers
    base, recents = int(window_start(start, WINDOW)), []
    for x in (key, value):
        recent = np.full((BLOCKS * TOKEN_GROUP, HEADS, HEAD_DIM), np.nan)
        recent[: stop - base] = x[base:stop]
        recents.append(recent.reshape(BLOCKS, TOKEN_GROUP, HEADS, HEAD_DIM))
    lengths = np.array([stop]), TABLE, np.array([stop - base]), TABLE
    batch = (np.array([0, stop - start]), *lengths)
    return attention_with_window_reference(query[start:stop], *caches, *recents, *batch, 0.3, WINDOW, sliding_window)


@given(
    length=st.integers(1, LONGEST),
    cuts=st.one_of(st.sets(st.integers(1, LONGEST - 1), max_size=5), st.just(set(range(1, LONGEST)))),
    name=st.sampled_from(["kivi_int4", "int8"]),
    sliding_window=st.sampled_from([0, 1, 45]),
    seed=st.integers(0, 3),
)
def test_chunks_mean_what_the_whole_means(length, cuts, name, sliding_window, seed):
    numbers = prompt(name, seed)
    whole = chunk_output(0, length, numbers, sliding_window)
    ends = [*sorted(cut for cut in cuts if cut < length), length]
    parts = [chunk_output(start, stop, numbers, sliding_window) for start, stop in zip([0, *ends], ends, strict=False)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-12)
