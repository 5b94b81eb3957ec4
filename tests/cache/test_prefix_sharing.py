"""Prefix sharing: what is found, the traps that caches of this kind fall into, and that both indexes find the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.cache.hash_chain import HashChain, block_hash, chain_root
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.errors import CacheError, OutOfMemoryError

SIZE = 4
INDEXES = {"hash chain": HashChain, "radix tree": RadixTree}


@pytest.fixture(params=INDEXES)
def policy(request):
    policy = PrefixSharingPolicy(INDEXES[request.param](SIZE), 8, SIZE)
    yield policy
    policy.check()


def admit(policy, name, token_ids, **options):
    """As the engine does: reserve, compute, commit. How many tokens were found."""
    hit = policy.reserve(name, token_ids, **options)
    policy.commit(name, len(token_ids))
    return hit


def text(length, start=0):
    return list(range(start, start + length))


def test_a_full_hit_leaves_the_last_token_to_compute(policy):
    assert admit(policy, "a", text(10)) == 0
    assert admit(policy, "b", text(9)) == 8
    assert policy.table("b")[:2] == policy.table("a")[:2] and policy.table("b")[2] != policy.table("a")[2]


def test_a_prompt_of_whole_blocks_computes_its_last_block_again(policy):
    """All 8 tokens are in the cache, and one must be computed: blocks are shared whole, so it is the last block."""
    admit(policy, "a", text(8))
    assert admit(policy, "b", text(8)) == 4
    assert policy.table("b")[1] != policy.table("a")[1], "the block that b writes is its own"
    assert policy.take_copies() == [], "and nothing is copied that is computed anyway"


def test_one_token_is_never_found(policy):
    admit(policy, "a", text(SIZE))
    assert admit(policy, "b", text(1)) == 0


def test_a_block_that_is_still_being_filled_is_not_found(policy):
    admit(policy, "a", text(6))
    assert admit(policy, "b", text(8)) == 4, "a's second block holds two tokens so far"
    policy.append("a", [6, 7, 8])
    policy.commit("a", 7)
    assert admit(policy, "c", text(12)) == 8, "what is found is b's: a's block is full, and its last token not yet computed"
    assert policy.table("c")[1] == policy.table("b")[1]


def test_tokens_that_are_not_committed_are_not_found(policy):
    policy.reserve("a", text(9))
    assert policy.reserve("b", text(9)) == 0
    policy.commit("a", 5)
    assert policy.reserve("c", text(9)) == 4
    with pytest.raises(CacheError, match="10 tokens of 'a' cannot be committed: 9 are known"):
        policy.commit("a", 10)


def test_a_shared_block_freed_once_still_serves_the_other(policy):
    admit(policy, "a", text(9))
    admit(policy, "b", text(9))
    shared = policy.table("a")[:2]
    policy.free("a")
    with pytest.raises(CacheError, match="'a' holds nothing"):
        policy.free("a")
    admit(policy, "c", text(20, start=100))  # takes 5 of the 5 blocks that nobody holds
    assert policy.table("b")[:2] == shared and not set(shared) & set(policy.table("c"))


def test_eviction_never_takes_a_block_that_somebody_holds(policy):
    admit(policy, "a", text(8))
    admit(policy, "b", text(16))  # shares a's 2 blocks, has 2 more
    policy.free("a")
    admit(policy, "c", text(12, start=100))
    policy.free("c")  # 3 blocks idle, 1 free
    admit(policy, "d", text(16, start=200))
    assert not set(policy.table("b")) & set(policy.table("d"))
    with pytest.raises(OutOfMemoryError, match="0 of 8 are free"):
        policy.reserve("e", [1])
    assert policy.tokens("b") == text(16)


def test_a_kept_block_that_is_found_is_not_counted_as_room_too(policy):
    """5 blocks are held and 2 kept; the prompt finds the 2 and needs 2 more, where 1 is free. Nothing is taken, the 2 stay kept."""
    admit(policy, "a", text(8))
    policy.free("a")
    admit(policy, "b", text(20, start=100))
    before = policy.usage()
    with pytest.raises(OutOfMemoryError, match="4 more KV cache blocks .* 3 of 8 are free"):
        policy.reserve("c", text(16))
    assert policy.usage() == before and len(policy.index.find(text(8), "")) == 2
    assert policy.reserve("c", text(12)) == 8


def test_the_longest_unused_goes_first_and_the_end_of_a_text_before_its_beginning(policy):
    for name, start in (("old", 0), ("new", 100)):
        admit(policy, name, text(12, start))
        policy.free(name)
    assert policy.usage().retained == 6 * SIZE
    admit(policy, "other", text(12, start=200))  # 2 free blocks and one evicted
    assert len(policy.index.find(text(12), "")) == 2, "the last block of the old one is gone"
    assert len(policy.index.find(text(12, 100), "")) == 3, "the new one is whole"


def test_a_hit_makes_a_prefix_young_again(policy):
    for name, start in (("first", 0), ("second", 100)):
        admit(policy, name, text(8, start))
        policy.free(name)
    admit(policy, "first again", text(8))
    policy.free("first again")
    admit(policy, "other", text(24, start=200))  # evicts 2
    policy.free("other")
    assert policy.reserve("a", text(8)) == 4
    assert policy.reserve("b", text(8, 100)) == 0


def test_a_preempted_sequence_finds_its_own_blocks_when_it_returns(policy):
    admit(policy, "a", text(6))
    policy.append("a", [6, 7, 8])
    policy.commit("a", 8)
    assert policy.preempt("a") == text(9)
    assert policy.usage().allocated == 0
    assert admit(policy, "a", text(9)) == 8, "only the last token is computed again"
    policy.preempt("a")
    admit(policy, "b", text(32, start=100))  # memory was short meanwhile
    policy.free("b")
    assert admit(policy, "a", text(9)) == 0, "its blocks are gone: all is computed again"


def test_tenants_share_nothing(policy):
    admit(policy, "a", text(9), tenant="one")
    assert admit(policy, "b", text(9), tenant="two") == 0
    assert admit(policy, "c", text(9), tenant="one") == 8


def test_forgotten_prefixes_are_not_found(policy):
    admit(policy, "a", text(9))
    policy.free("a")
    admit(policy, "b", text(5))
    policy.forget_prefixes()
    assert policy.usage().retained == 0
    assert policy.reserve("c", text(9)) == 0


def test_a_prefix_twice_in_the_cache_is_found_once(policy):
    """Two sequences computed the same tokens side by side: the one committed first is shared, the other one's blocks are free at once."""
    policy.reserve("a", text(8))
    policy.reserve("b", text(8))
    policy.commit("a", 8)
    policy.commit("b", 8)
    policy.append("b", [8, 9, 10, 11])
    policy.commit("b", 12)
    assert policy.reserve("c", text(13)) == 12
    assert policy.table("c")[:3] == policy.table("a") + policy.table("b")[2:]
    for name in ("a", "b", "c"):
        policy.free(name)
    assert policy.usage().retained == 3 * SIZE


def test_hit_rates_are_counted(policy):
    admit(policy, "a", text(10))
    admit(policy, "b", text(10))
    assert (policy.prefix_hits.tokens_asked, policy.prefix_hits.tokens_hit) == (20, 8)
    assert policy.prefix_hits.rate == 0.4


def test_a_fork_writes_to_a_copy_and_what_is_shared_stays_findable(policy):
    admit(policy, "a", text(6))
    policy.fork("a", "b")
    policy.append("b", [6, 7, 8])
    shared, own = policy.table("a")[1], policy.table("b")[1]
    assert policy.take_copies() == [(shared, own)]
    policy.commit("b", 9)
    assert policy.reserve("c", text(9)) == 8 and policy.table("c")[:2] == policy.table("b")[:2]


def test_evicting_a_block_takes_what_hangs_below_it_along():
    """Only in the tree: b's own third block hangs below a's two. When those go, it cannot be found any more."""
    policy = PrefixSharingPolicy(RadixTree(SIZE), 6, SIZE)
    policy.reserve("a", text(8))
    policy.reserve("b", text(12))
    policy.commit("a", 8)
    policy.commit("b", 12)
    policy.free("a")
    admit(policy, "c", text(8, start=100))  # evicts a's second block and the third of b, which b holds
    assert policy.tokens("b") == text(12)
    policy.check()
    assert len(policy.index.find(text(12), "")) == 1
    policy.free("b")
    policy.check()
    assert policy.usage().retained == SIZE, "a's first block; b's are free"


LENGTHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(prompts=LENGTHS)
def test_both_indexes_find_the_same(prompts):
    """While nothing is evicted."""
    policies = [PrefixSharingPolicy(index(SIZE), 200, SIZE) for index in INDEXES.values()]
    for number, (parting, length) in enumerate(prompts):  # texts that part after `parting` blocks
        token_ids = (text(SIZE * parting) + text(length, start=100 * parting))[: max(1, length)]
        hits = {admit(policy, number, token_ids) for policy in policies}
        assert len(hits) == 1
        if number % 3 == 1:
            for policy in policies:
                policy.free(number)
    for policy in policies:
        policy.check()


def test_a_hash_stands_for_the_tenant_and_all_tokens_before():
    """Nothing that differs anywhere may share a hash: another tenant, another beginning, other tokens, tokens cut into other blocks."""
    root = chain_root("")
    hashes = [root, chain_root("a"), block_hash(root, [1, 2]), block_hash(root, [2, 1]), block_hash(root, [1])]
    hashes += [block_hash(hashes[-1], [2]), block_hash(chain_root("a"), [1, 2]), block_hash(root, [1, 2, 0]), block_hash(root, [258])]
    assert len(set(hashes)) == len(hashes) and {len(digest) for digest in hashes} == {32}
