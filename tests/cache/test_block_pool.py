"""The block pool against a model of itself: whatever is reserved and released, no block is lost and none has two owners."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.cache.block_pool import BlockPool, blocks_needed
from minllm.errors import BlockPoolError, OutOfMemoryError


@settings(max_examples=200, deadline=None)
@given(
    num_blocks=st.integers(1, 20),
    actions=st.lists(st.tuples(st.sampled_from(["reserve", "release"]), st.integers(0, 4), st.integers(0, 9)), max_size=40),
)
def test_no_block_is_lost_or_shared(num_blocks, actions):
    pool = BlockPool(num_blocks)
    owned: dict[int, list[int]] = {}  # the model
    for action, owner, count in actions:
        free = num_blocks - sum(map(len, owned.values()))
        if action == "release":
            if owner in owned:
                pool.release(owner)
                del owned[owner]
            else:
                with pytest.raises(BlockPoolError, match="holds no blocks"):
                    pool.release(owner)
        elif owner in owned:
            with pytest.raises(BlockPoolError, match="already holds"):
                pool.reserve(owner, count)
        elif count > free:
            with pytest.raises(OutOfMemoryError, match=f"{count} KV cache blocks are needed .* and {free} of {num_blocks} are free"):
                pool.reserve(owner, count)
        else:
            owned[owner] = pool.reserve(owner, count)
            assert len(owned[owner]) == count
        assert pool.num_free + pool.num_used == num_blocks
        written = [block for blocks in owned.values() for block in blocks]
        assert len(written) == len(set(written)) == pool.num_used
        assert all(0 <= block < num_blocks for block in written)
        assert all(pool.blocks_of(owner) == blocks for owner, blocks in owned.items())


def test_the_lowest_blocks_go_first():
    pool = BlockPool(8)
    assert pool.reserve("a", 3) == [0, 1, 2]
    assert pool.reserve("b", 2) == [3, 4]
    pool.release("a")
    assert pool.reserve("c", 4) == [0, 1, 2, 5]


def test_a_returned_table_is_a_copy():
    pool = BlockPool(4)
    pool.reserve("a", 2).append(3)
    assert pool.blocks_of("a") == [0, 1]
    pool.release("a")
    assert pool.num_free == 4


def test_negative_counts_and_empty_pools_are_refused():
    with pytest.raises(OutOfMemoryError):
        BlockPool(0)
    with pytest.raises(BlockPoolError):
        BlockPool(2).reserve("a", -1)


@pytest.mark.parametrize("tokens,expected", [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_needed(tokens, expected):
    assert blocks_needed(tokens, 16) == expected
