"""The virtual policy: mapping ahead, kept pages, promises, and keys and values that are where the kernels will look for them."""

import gc
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache, virtual_layout
from minllm.cache.virtual.length_estimate import LengthEstimate
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.errors import CacheError, DeviceError, InvalidOptionError, OutOfMemoryError
from minllm.kernels.quantization.formats import kv_format
from minllm.ops.numpy_ops import NumpyOps
from tests.cache.shadow_cache import ShadowCache
from tests.cache.test_policies_fuzzed import AnyTraffic, run_patiently
from tests.runtime.guarded_pages import GuardedPages

SHAPE = CacheShape(num_layers=2, block_size=1, kv_heads=1, head_dim=4, dtype=np.dtype(np.float32))  # 32 bytes of keys a token


def make_policy(slots=3, max_tokens=16, pairs=24, page_bytes=64, read_tile=1, backend=None, **options):
    """A policy over guarded memory of the host: a page holds two tokens."""
    cache = VirtualKVCache(backend or GuardedPages(page_bytes), SHAPE, slots, max_tokens, pairs)
    options = {"background": False, "look_ahead": 0, "step_tile": 1, "estimate": LengthEstimate(tokens=4.0)} | options
    return VirtualPolicy(cache, read_tile=read_tile, **options)


def tokens(count):
    return list(range(count))


# The layout


def test_a_page_holds_few_tokens_of_all_layers():
    shape = CacheShape(32, 16, 8, 128, np.dtype(ml_dtypes.bfloat16))  # Llama-3.1-8B
    layout = virtual_layout(shape, 64, 8192, 2 << 20)
    assert layout.token_bytes == 65536 and layout.pairs_for(32) == 1 and layout.pairs_for(33) == 2
    assert (layout.slot_tokens, layout.block_size, layout.blocks_per_slot, layout.slot_pairs) == (8192, 8192, 1, 256)


def test_a_long_slot_is_cut_where_kernels_would_need_more_than_32_bits():
    shape = CacheShape(32, 16, 8, 128, np.dtype(ml_dtypes.bfloat16))
    layout = virtual_layout(shape, 4, 131072, 2 << 20)
    assert layout.blocks_per_slot * layout.block_size == 131072 and layout.block_size * 32 * 8 * 128 < 2**31 and layout.blocks_per_slot == 4


def test_no_page_belongs_to_two_slots():
    for layers, heads, dim in ((28, 4, 128), (7, 3, 24), (1, 1, 8)):
        layout = virtual_layout(CacheShape(layers, 16, heads, dim, np.dtype(np.float16)), 3, 1000, 4096)
        assert layout.slot_tokens >= 1000 and layout.slot_tokens * layout.token_bytes % 4096 == 0
        assert layout.pairs_for(layout.slot_tokens) == layout.slot_pairs


def test_a_quantised_cache_is_refused():
    shape = CacheShape(2, 16, 2, 64, np.dtype(np.float32), kv_format("int8", 64))
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype"):
        virtual_layout(shape, 2, 100, 4096)


# The policy


def test_a_prompt_is_mapped_at_once_and_the_expected_answer_ahead():
    policy = make_policy()
    assert policy.reserve("a", tokens(3)) == 0
    assert policy.slots.mapped == [4, 0, 0]  # 3 tokens and an answer of 4: 7 tokens, two a page
    assert (policy.counts.mapped_late, policy.counts.mapped_in_time, policy.counts.waits) == (2, 2, 0)
    for token in range(4):
        assert policy.append("a", [token]) is False
    assert policy.counts.waits == 0
    policy.check()


def test_without_the_thread_in_time_a_sequence_waits_and_that_is_counted():
    policy = make_policy(estimate=LengthEstimate(tokens=0.0))
    policy.map_ahead = lambda sequence: None
    policy.reserve("a", tokens(2))
    policy.append("a", [1])
    assert policy.counts.waits == 1 and policy.slots.mapped == [2, 0, 0]


def test_the_estimate_follows_the_answers_and_counts_those_that_were_longer():
    policy = make_policy(max_tokens=200, pairs=300, estimate=LengthEstimate(tokens=8.0, weight=0.5))
    for name, answer in enumerate((20, 20, 2)):
        policy.reserve(name, tokens(3))
        policy.append(name, tokens(answer))
        policy.free(name)
    assert (policy.estimate.answers, policy.estimate.too_short) == (3, 2)
    assert policy.estimate.tokens == ((8 + 20) / 2 + 20) / 2 / 2 + 1


def test_the_next_sequence_in_a_slot_finds_its_pages():
    policy = make_policy()
    policy.reserve("a", tokens(9))
    policy.free("a")
    before = len(policy.cache.pages.backend.log)
    policy.reserve("b", tokens(6), 1)
    assert len(policy.cache.pages.backend.log) == before and policy.counts.reused == 3
    assert policy.usage().retained == 0 and policy.usage().allocated == policy.slots.mapped[0] * 128


def test_a_sequence_gets_the_slot_that_fits_best():
    policy = make_policy(estimate=LengthEstimate(tokens=0.0))
    policy.map_ahead = lambda sequence: None
    for name, length in (("a", 12), ("b", 6), ("c", 2)):
        policy.reserve(name, tokens(length))
    for name in "abc":
        policy.free(name)
    policy.reserve("d", tokens(5))
    policy.reserve("e", tokens(15))
    assert (policy.table("d"), policy.table("e")) == ([1], [0])  # 3 pairs are there for 3; 6 of 8


def test_pages_of_idle_slots_are_taken_before_anybody_is_refused():
    policy = make_policy(pairs=8)
    policy.reserve("a", tokens(12))
    policy.free("a")
    assert policy.usage().retained == 8 * 128
    policy.reserve("b", tokens(2))
    policy.reserve("c", tokens(2))
    policy.append("b", tokens(10))
    policy.check()
    with pytest.raises(OutOfMemoryError, match="6 tokens of 'c' need 2 pairs of pages .* 1 of 8 are nobody's"):
        policy.append("c", tokens(4))
    policy.free("b")
    policy.append("c", tokens(10))
    assert policy.counts.reclaimed > 0
    policy.check()


def test_nothing_is_unmapped_before_the_gpu_was_waited_for():
    policy = make_policy(pairs=8)
    policy.reserve("a", tokens(12))
    policy.free("a")
    policy.reserve("b", tokens(2))
    policy.reserve("c", tokens(12))
    log = policy.cache.pages.backend.log
    assert "unmap" in log and all(log[i - 1] == "wait" for i, entry in enumerate(log) if entry == "unmap")


def test_a_promise_is_kept_and_not_given_away_to_those_who_map_ahead():
    policy = make_policy(pairs=8, estimate=LengthEstimate(tokens=100.0))
    policy.reserve("a", tokens(2), 8)  # 5 pairs
    policy.reserve("b", tokens(2))  # expects everything
    policy.check()
    with pytest.raises(OutOfMemoryError, match="8 tokens of 'c' need 4 pairs of pages .* 2 of 8 are nobody's"):
        policy.reserve("c", tokens(6), 2)
    policy.append("a", tokens(8))
    policy.check()


def test_what_was_mapped_too_far_ahead_is_taken_back():
    policy = make_policy(pairs=8, estimate=LengthEstimate(tokens=100.0))
    policy.reserve("a", tokens(2))
    assert policy.slots.mapped == [8, 0, 0]
    policy.reserve("b", tokens(12))
    assert policy.slots.mapped == [2, 6, 0] and policy.counts.reclaimed == 6
    policy.check()


def test_idle_slots_keep_no_more_than_they_may():
    policy = make_policy(max_retained_pairs=3)
    for name in "ab":
        policy.reserve(name, tokens(10))
    for name in "ab":
        policy.free(name)
        assert policy.slots.num_retained <= 3
    policy.check()


def test_whole_tiles_are_mapped_because_kernels_fetch_them():
    policy = make_policy(read_tile=8, step_tile=4, max_tokens=20, estimate=LengthEstimate(tokens=0.0))
    policy.reserve("a", tokens(1))
    assert policy.slots.mapped == [4, 0, 0] and policy.max_sequence_tokens == 20
    for token in range(7):
        policy.append("a", [token])
    assert policy.slots.mapped == [4, 0, 0]  # steps, within the prompt's tile
    policy.append("a", [8])
    assert policy.slots.mapped == [6, 0, 0]  # a step's tile
    policy.append("a", tokens(3))
    assert policy.slots.mapped == [8, 0, 0]  # several tokens at a time: a prompt's tile
    policy.reserve("b", tokens(17), 1)  # the last tile ends with the slot
    assert policy.slots.mapped == [8, 10, 0]
    policy.check()


def test_a_sequence_is_no_longer_than_the_tiles_for_which_there_are_pages():
    policy = make_policy(read_tile=8, step_tile=4, pairs=7)
    assert policy.max_sequence_tokens == 8
    policy.reserve("a", tokens(8))
    with pytest.raises(OutOfMemoryError, match="up to 8"):
        policy.append("a", [1])
    policy.check()


def test_mistakes_are_explained():
    policy = make_policy(slots=1, pairs=4)
    policy.reserve("a", tokens(2))
    for call, error, message in (
        (lambda: policy.reserve("a", [1]), CacheError, "sequence 'a' has reserved already"),
        (lambda: policy.reserve("b", []), CacheError, "0 tokens"),
        (lambda: policy.append("b", [1]), CacheError, "'b' holds nothing"),
        (lambda: policy.free("b"), CacheError, "'b' holds nothing"),
        (lambda: policy.append("a", tokens(7)), OutOfMemoryError, "holds sequences of up to 8"),
        (lambda: policy.reserve("b", [1]), OutOfMemoryError, "0 of 1 slots free"),
    ):
        with pytest.raises(error, match=message):
            call()
        policy.check()


def test_a_machine_without_memory_is_explained_and_nothing_is_lost():
    policy = make_policy(backend=GuardedPages(64, limit=10))
    policy.reserve("a", tokens(4))
    policy.free("a")
    with pytest.raises(OutOfMemoryError, match="the machine gives no more"):
        policy.reserve("b", tokens(16))
    policy.check()
    policy.reserve("b", tokens(4))


# The thread


def test_a_thread_that_does_not_get_on_is_an_error():
    policy = make_policy(background=True)
    with policy._lock, pytest.raises(DeviceError, match="pages of 1 sequences are still not mapped"):
        policy.reserve("a", tokens(3))
        policy._thread.wait(0.01)
    policy.wait()
    policy.close()


def test_the_thread_maps_ahead():
    policy = make_policy(background=True)
    policy.reserve("a", tokens(3))
    policy.wait()
    assert policy.slots.mapped == [4, 0, 0] and policy.counts.mapped_in_time == 2
    policy.close()
    assert not policy.cache.pages.backend.mapped and policy.cache.pages.created == 0


def test_what_stops_the_thread_is_told():
    backend = GuardedPages(64)
    policy = make_policy(background=True, backend=backend)
    backend.map_fails_after = 4  # the prompt's pairs of pages
    policy.reserve("a", tokens(4))
    with pytest.raises(DeviceError, match="could not map"):
        policy.wait()
    policy.wait()
    policy.check()


def test_the_thread_ends_with_its_policy(only_new_objects):
    before = set(threading.enumerate())
    policy = make_policy(background=True)
    policy.reserve("a", tokens(3))
    policy.wait()
    [thread] = set(threading.enumerate()) - before
    policy = None
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


# Any traffic, with real memory behind it


class MemoryShadow(ShadowCache):
    """Token ids as keys and values of every layer, in the cache's own memory, as kernels write and read them."""

    def apply_copies(self):
        self.policy.cache.copy_blocks(NumpyOps(), self.policy.take_copies())

    def write(self, sequence, start):
        self.apply_copies()
        token_ids = self.policy.tokens(sequence)
        for layer, key, value in self._places(sequence, np.arange(start, len(token_ids))):
            for written, (array, place) in ((2 * layer, key), (2 * layer + 1, value)):
                array[place] = (np.array(token_ids[start:]) + 10 * written)[:, None, None]
        self.written[sequence] = token_ids

    def read(self, sequence):
        positions = np.arange(len(self.policy.tokens(sequence)))
        found = [
            array[place] - 10 * (2 * layer + i)
            for layer, *both in self._places(sequence, positions)
            for i, (array, place) in enumerate(both)
        ]
        for other in found:
            np.testing.assert_array_equal(other, found[0])
        return found[0][:, 0, 0].astype(int).tolist()

    def _places(self, sequence, positions):
        place = np.divmod(self._slots(sequence, positions), self.policy.block_size)
        return [(i, (layer.key, place), (layer.value, place)) for i, layer in enumerate(self.policy.cache.layers)]

    def check(self):
        super().check()
        self.policy.cache.pages.backend.check_untouched()


class VirtualTraffic(AnyTraffic):
    """What every policy has to stand, over memory that notices every touch beyond its pages."""

    background = False

    @initialize(slots=st.integers(1, 4), pairs=st.integers(1, 12), page_bytes=st.sampled_from([32, 64, 128]), tile=st.sampled_from([1, 4]))
    def begin(self, slots, pairs, page_bytes, tile):
        self.policy, shadow = self.make(slots, max(pairs, 4), page_bytes, tile)
        self.shadow, self.promised = shadow(self.policy), {}

    def make(self, slots, pairs, page_bytes, tile):
        """A policy, and the shadow that follows it."""
        return make_policy(slots, 12, pairs, page_bytes, tile, background=self.background, step_tile=1 + tile // 4), MemoryShadow

    def check_forked(self, before):
        """A fork copies."""
        self.shadow.apply_copies()

    def check_trimmed(self, name, num_tokens):
        assert self.policy._claims.held[name].room == num_tokens

    @invariant()
    def the_thread_is_done(self):
        if hasattr(self, "shadow"):
            self.policy.wait()

    def teardown(self):
        super().teardown()
        if hasattr(self, "shadow"):
            self.policy.close()
            self.check_all_is_given_back()

    def check_all_is_given_back(self):
        """No page is lost."""
        assert not self.policy.cache.pages.backend.mapped and self.policy.cache.pages.backend.num_created == 0


@pytest.mark.parametrize("background", [False, True], ids=["at once", "in a thread"])
def test_the_policy_under_any_traffic(background):
    run_patiently(type("Traffic", (VirtualTraffic,), {"background": background}), 60)
