"""Swapping: every sequence comes back as it left, whatever happens in between and however late the copies are."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.cache.hash_chain import HashChain
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.offload import SwapSpace
from minllm.cache.paged import PagedPolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.transfers import HostTransfers
from minllm.errors import CacheError, InvalidOptionError, OutOfMemoryError
from minllm.kernels.quantization.formats import kv_format
from minllm.ops.numpy_ops import NumpyOps
from tests.cache.late_transfers import LateTransfers

PLAIN = CacheShape(num_layers=2, block_size=4, kv_heads=1, head_dim=3, dtype=np.dtype(np.float32))


class Traffic:
    """A small cache whose every byte of a token says whose it is, and its swap space."""

    def __init__(self, num_blocks=8, host_chunks=4, transfers=None, shape=PLAIN, policy=None, chunk_blocks=2):
        self.policy = policy or PagedPolicy(num_blocks, shape.block_size)
        self.cache = KVCache(NumpyOps(), shape, num_blocks)
        block_bytes = sum(array.nbytes // num_blocks for array in self.arrays())
        transfers = transfers or HostTransfers()
        self.space = SwapSpace(self.cache, self.policy, transfers, host_chunks * chunk_blocks * block_bytes, chunk_blocks)

    def arrays(self):
        return [part for array in self.cache.arrays for part in array]

    def write(self, sequence, value):
        """All bytes of the sequence's blocks, different in every array and block."""
        for i, array in enumerate(self.arrays()):
            for j, block in enumerate(self.policy.table(sequence)):
                array[block].reshape(-1).view(np.uint8)[:] = (value + 31 * i + 7 * j) % 251

    def scramble(self, num_blocks):
        """Blocks that nobody holds get other contents."""
        held = {block for sequence in self.policy._held for block in self.policy.table(sequence)}
        for array in self.arrays():
            array[[block for block in range(num_blocks) if block not in held]] = -1

    def check(self, sequence, value):
        for i, array in enumerate(self.arrays()):
            for j, block in enumerate(self.policy.table(sequence)):
                assert (array[block].reshape(-1).view(np.uint8) == (value + 31 * i + 7 * j) % 251).all(), (sequence, i, j)


@pytest.mark.parametrize("name", [None, "int8", "int4"])
def test_a_sequence_comes_back_as_it_left(name):
    shape = PLAIN if name is None else CacheShape(2, 4, 2, 64, np.dtype(np.float32), kv_format(name, 64))
    traffic = Traffic(shape=shape)
    for sequence, length in (("a", 15), ("b", 9)):
        traffic.policy.reserve(sequence, range(length))
    traffic.write("a", 10)
    traffic.write("b", 20)
    traffic.space.swap_out("a", 14)
    assert traffic.space.reap() == 1 and traffic.policy.usage().allocated == 3 * 4
    traffic.policy.reserve("c", range(20))
    traffic.write("c", 30)
    traffic.policy.free("c")
    assert traffic.space.swap_in("a") == 14 and traffic.space.bytes_used == 0
    assert traffic.policy.tokens("a") == list(range(15))
    traffic.check("a", 10)
    traffic.check("b", 20)
    traffic.policy.check()


def test_blocks_are_not_given_away_while_they_are_read():
    late = LateTransfers()
    traffic = Traffic(transfers=late)
    traffic.policy.reserve("a", range(8))
    traffic.write("a", 1)
    traffic.space.swap_out("a", 8)
    assert traffic.policy.usage().allocated == 8, "the copies have not even begun"
    assert traffic.space.reap(wait=True) == 1 and traffic.policy.usage().allocated == 0


def test_a_sequence_that_comes_in_beside_others_runs_once_it_has_arrived():
    late = LateTransfers(seed=3)
    traffic = Traffic(transfers=late)
    traffic.policy.reserve("a", range(8))
    traffic.write("a", 1)
    traffic.space.swap_out("a", 8)
    traffic.space.reap(wait=True)
    traffic.space.swap_in("a", beside=True)
    for array in traffic.arrays():
        array[:] = 0  # and nothing was there before
    while not traffic.space.has_arrived("a"):
        pass
    traffic.check("a", 1)
    assert traffic.space.has_arrived("never seen")


def test_blocks_that_are_still_in_the_cache_are_not_copied_again():
    policy = PrefixSharingPolicy(HashChain(4), 8, 4)
    traffic = Traffic(policy=policy)
    policy.reserve("a", range(14))
    policy.commit("a", 14)
    traffic.write("a", 5)
    traffic.space.swap_out("a", 14)
    traffic.space.reap(wait=True)
    shared = policy.reserve("b", [*range(12), 99])  # holds the first three blocks
    assert shared == 12
    before = [array[policy.table("b")[:3]].copy() for array in traffic.arrays()]
    assert traffic.space.swap_in("a") == 14 and policy.table("a")[:3] == policy.table("b")[:3]
    for array, old in zip(traffic.arrays(), before, strict=True):
        np.testing.assert_array_equal(array[policy.table("b")[:3]], old)
    traffic.check("a", 5)


def test_mistakes_are_explained_and_change_nothing():
    traffic = Traffic(num_blocks=8, host_chunks=1)
    space, policy = traffic.space, traffic.policy
    policy.reserve("a", range(8))
    traffic.write("a", 1)
    for call, error, message in (
        (lambda: space.swap_out("b", 1), CacheError, "'b' holds nothing"),
        (lambda: space.swap_out("a", 9), CacheError, "9 computed tokens of 'a' cannot be swapped: it has 8"),
        (lambda: space.swap_out("a", 0), CacheError, "0 computed tokens"),
        (lambda: space.swap_in("a"), CacheError, "'a' is not swapped out"),
        (lambda: space.drop("a"), CacheError, "'a' is not swapped out"),
    ):
        with pytest.raises(error, match=message):
            call()
    space.swap_out("a", 8)
    with pytest.raises(CacheError, match="swapped out already"):
        space.swap_out("a", 8)
    space.reap()
    policy.reserve("b", range(4))
    with pytest.raises(OutOfMemoryError, match="'b' needs 1 chunks .* 0 of 1 are left"):
        space.swap_out("b", 4)
    policy.append("b", range(26))
    with pytest.raises(OutOfMemoryError, match="'a'"):
        space.swap_in("a")
    assert policy.tokens("b") == [*range(4), *range(26)]
    policy.free("b")
    space.swap_in("a")
    traffic.check("a", 1)
    space.swap_out("a", 3)
    space.drop("a")
    assert space.bytes_used == 0 and policy.usage().allocated == 0


def test_a_residual_window_is_in_no_block():
    shape = replace(PLAIN, residual_window=32)
    with pytest.raises(InvalidOptionError, match="residual window are not swapped"):
        SwapSpace(KVCache(NumpyOps(), shape, 8), PagedPolicy(8, 4), HostTransfers(), 1 << 20)


STEPS = ("reserve", "out", "in", "beside", "reap", "free", "drop")


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_swaps(seed):
    random = np.random.default_rng(seed)
    traffic = Traffic(num_blocks=8, host_chunks=6, transfers=LateTransfers(seed), chunk_blocks=1 + seed % 3)
    space, policy = traffic.space, traffic.policy
    running, away, arriving, values = set(), set(), set(), {}
    for number in range(400):
        name, sequence, length = random.choice(STEPS), int(random.integers(4)), int(random.integers(1, 17))
        arriving = {one for one in arriving if not space.has_arrived(one)}
        still = running - arriving
        try:
            if name == "reserve" and sequence not in running | away:
                policy.reserve(sequence, range(length))
                running.add(sequence)
                values[sequence] = number
                traffic.write(sequence, number)
            elif name == "out" and sequence in still:
                space.swap_out(sequence, len(policy.tokens(sequence)))
                running.remove(sequence)
                away.add(sequence)
            elif name in ("in", "beside") and sequence in away:
                traffic.scramble(8)
                space.swap_in(sequence, beside=name == "beside")
                away.remove(sequence)
                running.add(sequence)
                arriving |= {sequence} if name == "beside" else set()
            elif name == "reap":
                space.reap(wait=length > 8)
            elif name == "free" and sequence in still:
                policy.free(sequence)
                running.remove(sequence)
            elif name == "drop" and sequence in away:
                space.drop(sequence)
                away.remove(sequence)
        except OutOfMemoryError:
            pass
        for one in running - arriving:
            traffic.check(one, values[one])
        policy.check()
    space.reap(wait=True)
    for sequence in away:
        space.drop(sequence)
    for sequence in running:
        policy.free(sequence)
    assert space.bytes_used == 0 and policy.usage().allocated == 0
