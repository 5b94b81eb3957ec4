"""The block pool against a model of itself: no block is lost, given twice, or given back while somebody holds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.cache.block_pool import BlockPool, blocks_needed
from minllm.errors import CacheError, OutOfMemoryError

ACTIONS = ["take", "hold", "release", "give_back"]


@given(num_blocks=st.integers(1, 6), actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), max_size=40))
def test_no_block_is_lost_or_given_twice(num_blocks, actions):
    pool = BlockPool(num_blocks)
    free, holders = set(range(num_blocks)), [0] * num_blocks  # the model
    for action, block in actions:
        block %= num_blocks
        if action == "take":
            count = 1 + block
            if count > len(free):
                with pytest.raises(OutOfMemoryError, match=f"{count} blocks .* {len(free)} of {num_blocks} are free"):
                    pool.take(count)
                continue
            taken = pool.take(count)
            assert taken == sorted(free)[:count]
            free -= set(taken)
            for one in taken:
                holders[one] = 1
        elif action == "hold" and block not in free:
            pool.hold([block])
            holders[block] += 1
        elif action == "release" and holders[block]:
            holders[block] -= 1
            assert pool.release([block]) == [block] * (holders[block] == 0)
        elif action == "give_back" and not holders[block] and block not in free:
            pool.give_back([block])
            free.add(block)
        else:
            with pytest.raises(CacheError, match=f"block {block}"):
                getattr(pool, action)([block])
        assert pool.num_free == len(free)
        assert pool.num_held == sum(count > 0 for count in holders)
        assert pool.num_free + pool.num_held + pool.num_idle == num_blocks
        assert [pool.holders(block) for block in range(num_blocks)] == holders


def test_an_empty_pool_is_refused():
    with pytest.raises(OutOfMemoryError, match="0 blocks"):
        BlockPool(0)


@pytest.mark.parametrize("tokens,expected", [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_needed(tokens, expected):
    assert blocks_needed(tokens, 16) == expected
