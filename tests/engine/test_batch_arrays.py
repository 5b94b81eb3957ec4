"""The arrays of a batch against a plain loop over tokens."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.engine.running.batch_arrays import decode_batch, padded_block_tables, prefill_chunks


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 3, 16]),
    budget=st.integers(1, 50),
    share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_chunks_cover_every_uncached_token_once_and_in_order(lengths, block_size, budget, share):
    cached = [int(share * (length - 1)) for length in lengths]
    prompts = [[100 * index + i for i in range(length)] for index, length in enumerate(lengths)]
    numbers = iter(np.random.default_rng(0).permutation(300).tolist())
    tables = [[next(numbers) for _ in range(-(-length // block_size))] for length in lengths]
    expected = [
        (token, position, tables[index][position // block_size] * block_size + position % block_size)
        for index, prompt in enumerate(prompts)
        for position, token in enumerate(prompt)
        if position >= cached[index]
    ]
    seen, completed = [], []
    for chunk in prefill_chunks(prompts, tables, block_size, budget, cached, range(len(prompts))):
        batch = chunk.batch
        assert 1 <= batch.num_tokens <= budget
        assert batch.num_tokens == len(batch.token_ids) == batch.query_start[-1]
        queries = np.diff(batch.query_start)
        assert batch.max_query_len == queries.max() and batch.max_context_len == batch.context_lens.max()
        for sequence in range(batch.num_sequences):
            rows = slice(batch.query_start[sequence], batch.query_start[sequence + 1])
            assert batch.positions[rows].tolist() == list(
                range(batch.context_lens[sequence] - queries[sequence], batch.context_lens[sequence])
            )
        arrays = (batch.token_ids, batch.positions, batch.slot_mapping)
        assert all(array.dtype == np.int32 for array in (*arrays, batch.query_start, batch.context_lens, batch.block_tables))
        seen += list(zip(*(array.tolist() for array in arrays), strict=True))
        if chunk.completed:
            assert batch.token_ids[batch.logits_rows].tolist() == [prompts[index][-1] for index in chunk.completed]
        else:
            assert batch.logits_rows.tolist() == [batch.num_tokens - 1]
        completed += chunk.completed
    assert seen == expected
    assert completed == list(range(len(prompts)))


def test_equal_prompts_are_computed_once_and_get_the_same_logits_each():
    prompts, tables = [[5, 6, 7], [5, 6, 7], [5, 6, 7], [8, 9]], [[0], [1], [2], [3]]
    chunks = list(prefill_chunks(prompts, tables, 4, 4, [0, 0, 0, 0], [0, 0, 0, 3]))
    assert [chunk.batch.token_ids.tolist() for chunk in chunks] == [[5, 6, 7, 8], [9]]
    assert [chunk.completed for chunk in chunks] == [[0, 1, 2], [3]]
    assert [chunk.batch.logits_rows.tolist() for chunk in chunks] == [[2, 2, 2], [0]]
    assert chunks[0].batch.slot_mapping.tolist() == [0, 1, 2, 12]


def test_a_decode_step():
    tables = padded_block_tables([[7, 3], [5], [0, 1, 2]])
    assert padded_block_tables([[7, 3], [5]], 4).tolist() == [[7, 3, 0, 0], [5, 0, 0, 0]]
    assert tables.tolist() == [[7, 3, 0], [5, 0, 0], [0, 1, 2]]
    batch = decode_batch(np.array([9, 8, 7], np.int32), np.array([16, 2, 47], np.int32), tables, block_size=16)
    assert batch.slot_mapping.tolist() == [48, 82, 47]
    assert batch.context_lens.tolist() == [17, 3, 48]
    assert batch.query_start.tolist() == [0, 1, 2, 3] and batch.logits_rows.tolist() == [0, 1, 2]
    assert (batch.num_tokens, batch.max_query_len, batch.max_context_len) == (3, 1, 48)
    for array in (batch.slot_mapping, batch.context_lens, batch.query_start, batch.logits_rows):
        assert array.dtype == np.int32
