"""Local blocks at random: each query finds its window where the tables say, and no sequence has more than a window of blocks."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from minllm.cache.block_pool import blocks_needed
from minllm.cache.hash_chain import HashChain
from minllm.cache.paged import PagedPolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.cache.window_blocks import WindowBlocks, WindowRoom
from minllm.errors import OutOfMemoryError
from minllm.kernels.slots.local_blocks import local_blocks_reference
from tests.cache.test_policies_fuzzed import run_patiently

NAMES = st.integers(0, 4)
TEXT = [1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1]
PROMPTS = st.builds(lambda length, tail: TEXT[:length] + tail, st.integers(0, 17), st.lists(st.integers(0, 1), min_size=1, max_size=4))
POLICIES = {
    "paged": lambda blocks, size, windows: PagedPolicy(blocks, size, windows=windows),
    "hash chain": lambda blocks, size, windows: PrefixSharingPolicy(HashChain(size), blocks, size, windows=windows),
    "radix tree": lambda blocks, size, windows: PrefixSharingPolicy(RadixTree(size), blocks, size, windows=windows),
}


class WindowTraffic(RuleBasedStateMachine):
    """A layer with a window behind a policy; a "key" is all tokens up to its own, so that the right one is unmistakable."""

    make, keeps = None, False

    @initialize(
        blocks=st.integers(24, 40), size=st.integers(1, 4), window=st.integers(1, 9), most=st.integers(1, 6), rooms=st.integers(1, 3)
    )  # fmt: skip
    def begin(self, blocks, size, window, most, rooms):
        room = WindowRoom(window, size, most)
        self.room = WindowRoom(window, size, most, room.blocks_of_a_step + rooms * room.blocks_of(0))
        self.policy = type(self).make(blocks, size, WindowBlocks(blocks, self.room, keeps=type(self).keeps))
        self.keys = np.full(self.room.num_blocks * size, None)
        self.computed = {}  # sequence -> number of its tokens with keys

    @rule(name=NAMES, token_ids=PROMPTS, max_tokens=st.sampled_from([0, 0, 3]))
    def reserve(self, name, token_ids, max_tokens):
        if name not in self.computed:
            try:
                self.computed[name] = self.policy.reserve(name, token_ids, max_tokens)
            except OutOfMemoryError:
                assert self.computed, "an empty cache has room for a window"

    @rule(names=st.lists(NAMES, unique=True, min_size=1))
    def step(self, names):
        """Plan a step, then copy and compute, as the engine does."""
        self.policy.begin_step()
        spans, budget = [], self.room.step_tokens
        for name in names:
            start = self.computed.get(name)
            length = 0 if start is None else min(budget, len(self.policy.tokens(name)) - start)
            if length:
                self.policy.slide(name, start, start + length)
                spans.append((name, start, start + length))
                self.computed[name], budget = start + length, budget - length
        self.policy.take_copies()
        blocks = self.keys.reshape(-1, self.room.block_size)
        for source, destination in self.policy.take_local_copies():
            blocks[destination] = blocks[source]
        for name, start, end in spans:
            self.compute(name, start, end)

    def compute(self, name, start, end):
        """Write the keys of the positions start to end, and read what their queries see."""
        token_ids, table, size = self.policy.tokens(name), np.array(self.policy.table(name), np.int32), self.room.block_size
        positions = np.arange(end)
        slots = (table[positions // size] * size + positions % size).astype(np.int32)
        ends, local_of = np.array([end], np.int32), self.policy.windows.local_of
        places, _ = local_blocks_reference(slots, ends, table[None], local_of, size)
        assert (places[start:] >= 0).all()
        for position in range(start, end):
            self.keys[places[position]] = tuple(token_ids[: position + 1])
        for position in range(max(0, start - self.room.window + 1), end):
            assert self.keys[places[position]] == tuple(token_ids[: position + 1])
        self.policy.commit(name, end)

    @rule(name=NAMES, token=st.integers(0, 1))
    def append(self, name, token):
        """The next token of a sequence whose tokens are computed."""
        if self.is_computed(name):
            try:
                self.policy.append(name, [token])
            except OutOfMemoryError:
                pass

    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent, child):
        if self.is_computed(parent) and child not in self.computed:
            try:
                self.policy.fork(parent, child)
            except OutOfMemoryError:
                return
            self.computed[child] = self.computed[parent]

    @rule(name=NAMES)
    def free(self, name):
        if self.computed.pop(name, None) is not None:
            self.policy.free(name)

    @rule()
    def lose_trust(self):
        self.policy.forget_prefixes()

    def is_computed(self, name):
        return name in self.computed and self.computed[name] == len(self.policy.tokens(name))

    @invariant()
    def books_are_right_and_windows_bounded(self):
        if hasattr(self, "policy"):
            self.policy.check()
            most = len(self.computed) * self.room.blocks_of(0) + blocks_needed(self.room.step_tokens, self.room.block_size)
            assert self.policy.windows.num_used <= most
            assert bool(self.policy.windows.num_used) <= bool(self.computed)


@pytest.mark.parametrize("name", POLICIES)
def test_windows_under_any_traffic(name):
    run_patiently(type(name, (WindowTraffic,), {"make": staticmethod(POLICIES[name]), "keeps": name != "paged"}), 100)


def test_a_long_text_needs_blocks_for_a_window_and_a_step():
    """16 tokens a step of a text of 400, with a window of 13: the local blocks that left it are freed, and counted."""
    room = WindowRoom(13, 4, 16)
    room = WindowRoom(13, 4, 16, room.blocks_of_a_step + room.blocks_of(0))
    windows = WindowBlocks(101, room)
    policy = PagedPolicy(101, 4, windows=windows)
    policy.reserve("long", [7] * 400)
    for start in range(0, 400, 16):
        policy.begin_step()
        policy.slide("long", start, start + 16)
        assert windows.num_used <= (13 + 16) // 4 + 2
    assert windows.num_freed == (384 - 12) // 4
    with pytest.raises(OutOfMemoryError, match="sliding window of 'other' has no room"):
        policy.reserve("other", [1])
    with pytest.raises(OutOfMemoryError, match="no room for a window of 13 tokens"):
        WindowBlocks(100, WindowRoom(13, 4, 16, room.num_blocks - 1))


def test_a_prefix_is_reused_up_to_a_block_with_its_window():
    """A last window is left, and the beginning is not: an equal text is found whole, and one that ends earlier not at all."""
    room = WindowRoom(5, 2, 4)
    windows = WindowBlocks(40, WindowRoom(5, 2, 4, room.blocks_of_a_step + room.blocks_of(0)), keeps=True)
    policy = PrefixSharingPolicy(HashChain(2), 40, 2, windows=windows)
    text = list(range(30))
    policy.reserve("first", text)
    for start in range(0, 30, 4):
        policy.begin_step()
        policy.slide("first", start, min(30, start + 4))
        policy.commit("first", min(30, start + 4))
    policy.free("first")
    assert policy.reserve("whole", [*text, 99]) == 30
    policy.free("whole")
    assert policy.reserve("early", [*text[:8], 99]) == 0
