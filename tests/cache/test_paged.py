"""The paged and the contiguous policy, case by case: waste, copy on write, promises, and what is refused."""

import pytest

from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.paged import PagedPolicy
from minllm.errors import CacheError, OutOfMemoryError

BLOCK_SIZES = [8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_only_the_last_block_of_a_sequence_waits(size):
    policy = PagedPolicy(40, size, bytes_per_block=size * 1000)
    for name, length in enumerate((1, size - 1, size, size + 1, 3 * size + 7)):
        policy.reserve(name, [7] * length)
        assert len(policy.table(name)) == -(-length // size)
    usage = policy.usage()
    assert usage.holding == 1000 * (6 * size + 8)
    assert usage.wasted == 1000 * ((size - 1) + 1 + 0 + (size - 1) + (size - 7))
    assert usage.waste == usage.wasted / usage.allocated and usage.total == 40_000 * size
    policy.check()


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_a_block_is_taken_when_its_first_token_comes(size):
    policy = PagedPolicy(3, size)
    policy.reserve("a", [0] * (size - 1))
    assert [policy.append("a", [1]) for _ in range(size + 2)] == [False, True] + [False] * (size - 1) + [True]
    assert len(policy.table("a")) == 3
    assert not policy.make_room("a", 2 * size), "there is room already"


def test_a_contiguous_sequence_has_all_its_room_from_the_start():
    policy = ContiguousPolicy(3, 100, bytes_per_sequence=100)
    policy.reserve("a", [0] * 20)
    assert policy.usage().allocated == 100 and policy.usage().waste == 0.8
    assert not any(policy.append("a", [1]) for _ in range(80))
    with pytest.raises(OutOfMemoryError, match="101 tokens of 'a' can never fit: .* room for 100 tokens of a sequence"):
        policy.append("a", [1])
    assert len(policy.tokens("a")) == 100


def test_forks_share_until_one_of_them_writes():
    policy = PagedPolicy(8, 4)
    policy.reserve("a", [0] * 6)
    for name in ("b", "c"):
        policy.fork("a", name)
    assert policy.table("a") == policy.table("b") == policy.table("c") and policy.usage().allocated == 8
    assert policy.append("b", [1])
    [(source, copy)] = policy.take_copies()
    assert (source, copy) == (policy.table("a")[1], policy.table("b")[1]) and policy.take_copies() == []
    policy.append("c", [2])
    assert not policy.append("a", [3]), "the last one to write has the old block to itself"
    assert len(policy.take_copies()) == 1
    assert policy.table("a")[0] == policy.table("b")[0] == policy.table("c")[0]
    assert [policy.tokens(name)[6:] for name in "abc"] == [[3], [1], [2]]
    policy.check()


def test_forks_that_end_in_a_full_block_copy_nothing():
    policy = PagedPolicy(8, 4)
    policy.reserve("a", [0] * 8)
    policy.fork("a", "b")
    policy.append("a", [1])
    policy.append("b", [2])
    assert policy.take_copies() == [] and policy.usage().allocated == 4 * 4


def test_a_copy_whose_source_is_freed_meanwhile_is_still_told():
    """The blocks are copied before anybody writes: what was in the source is there until then, whoever holds it next."""
    policy = PagedPolicy(4, 4)
    policy.reserve("a", [0] * 6)
    policy.fork("a", "b")
    policy.append("b", [1])
    old = policy.table("a")[1]
    policy.free("a")
    policy.reserve("c", [5] * 4)
    assert policy.table("c") == [old] and policy.take_copies() == [(old, policy.table("b")[1])]


def test_what_is_promised_is_not_promised_twice():
    policy = PagedPolicy(6, 4)
    policy.reserve("a", [0] * 3, max_tokens=13)
    assert policy.usage().allocated == 4 and policy.usage().promised == 12
    with pytest.raises(OutOfMemoryError, match="3 more KV cache blocks of 4 tokens .* 2 of 6 are free and unpromised"):
        policy.reserve("b", [0] * 9)
    policy.reserve("b", [0] * 8)
    with pytest.raises(OutOfMemoryError, match="1 more KV cache block"):
        policy.append("b", [1])
    policy.append("a", [1] * 13)
    policy.free("b")
    assert policy.append("a", [1]), "beyond its promise it gets what is left"
    policy.check()


def test_a_fork_keeps_its_parents_promise_or_is_refused():
    policy = PagedPolicy(6, 4)
    policy.reserve("a", [0] * 6, max_tokens=6)
    policy.fork("a", "b")
    with pytest.raises(OutOfMemoryError):
        policy.fork("a", "c")
    assert policy.usage().allocated == 8
    policy.append("a", [1] * 6)
    policy.append("b", [2] * 6)
    policy.check()


def test_a_preempted_sequence_comes_back_with_all_its_tokens():
    policy = PagedPolicy(3, 4)
    policy.reserve("a", [1, 2, 3])
    policy.append("a", [4, 5])
    policy.reserve("b", [9])
    with pytest.raises(OutOfMemoryError):
        policy.append("b", [9] * 4)
    assert policy.preempt("a") == [1, 2, 3, 4, 5]
    policy.append("b", [9] * 4)
    with pytest.raises(OutOfMemoryError, match="2 more KV cache blocks .* 1 of 3 are free"):
        policy.reserve("a", [1, 2, 3, 4, 5])
    policy.free("b")
    assert policy.reserve("a", [1, 2, 3, 4, 5]) == 0 and policy.tokens("a") == [1, 2, 3, 4, 5]


MISUSE = {
    "a stranger": (lambda p: p.free("x"), CacheError, "'x' holds nothing"),
    "a double free": (lambda p: (p.free("a"), p.free("a")), CacheError, "'a' holds nothing: it never reserved, or it was freed before"),
    "a second reservation": (lambda p: p.reserve("a", [1]), CacheError, "'a' has reserved already"),
    "a fork to itself": (lambda p: p.fork("a", "a"), CacheError, "'a' has reserved already"),
    "a fork of a stranger": (lambda p: p.fork("x", "y"), CacheError, "'x' holds nothing"),
    "no tokens": (lambda p: p.reserve("b", []), CacheError, "0 tokens and max_tokens=0 cannot be reserved"),
    "a negative promise": (lambda p: p.reserve("b", [1], -1), CacheError, "max_tokens=-1 cannot be reserved"),
    "too long for the cache": (lambda p: p.reserve("b", [1] * 9, 8), OutOfMemoryError, "17 tokens of 'b' can never fit: .* for 16 tokens"),
    "too long for now": (lambda p: p.reserve("b", [1] * 16), OutOfMemoryError, "4 more KV cache blocks .* 3 of 4 are free"),
    "no blocks": (lambda p: PagedPolicy(0, 4), OutOfMemoryError, "0 blocks holds nothing"),
    "blocks of nothing": (lambda p: PagedPolicy(4, 0), CacheError, "blocks of 0 tokens"),
}


@pytest.mark.parametrize("misuse,error,message", MISUSE.values(), ids=MISUSE)
def test_misuse_is_named(misuse, error, message):
    policy = PagedPolicy(4, 4)
    policy.reserve("a", [1, 2])
    with pytest.raises(error, match=message):
        misuse(policy)
    policy.check()
    policy.reserve("another", [1] * 8)


def test_check_finds_books_that_are_wrong():
    def broken(spoil):
        policy = PagedPolicy(6, 4)
        policy.reserve("a", [1] * 6)
        policy.fork("a", "b")
        policy.reserve("c", [2] * 3)
        policy.check()
        spoil(policy)
        with pytest.raises(CacheError, match="books are wrong"):
            policy.check()

    broken(lambda p: p._held["a"].blocks.append(7))
    broken(lambda p: p._held["a"].blocks.append(p._held["a"].blocks[0]))
    broken(lambda p: p._held["a"].blocks.pop())
    broken(lambda p: p._held["a"].token_ids.append(3))
    broken(lambda p: p._held["c"].blocks.__setitem__(0, p._held["a"].blocks[1]))
    broken(lambda p: p.pool.release(p._held["a"].blocks[:1]))
    broken(lambda p: p.pool.take(1))
    broken(lambda p: p._filled.__setitem__(0, 1))
