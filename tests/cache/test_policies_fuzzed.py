"""Every policy, driven at random: after each call its books are right, and every sequence finds its own tokens in the cache."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from minllm.cache.block_pool import blocks_needed
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.hash_chain import HashChain
from minllm.cache.paged import PagedPolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.errors import CacheError, OutOfMemoryError
from tests.cache.shadow_cache import ShadowCache

NAMES = st.integers(0, 5)
TEXT = [1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0]
TAILS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
PROMPTS = st.builds(lambda length, tail: TEXT[:length] + tail, st.integers(0, 12), TAILS)  # most begin alike

POLICIES = {
    "contiguous": lambda blocks, size: ContiguousPolicy(blocks, 4 * size),
    "paged": PagedPolicy,
    "hash chain": lambda blocks, size: PrefixSharingPolicy(HashChain(size), blocks, size),
    "radix tree": lambda blocks, size: PrefixSharingPolicy(RadixTree(size), blocks, size),
}


class AnyTraffic(RuleBasedStateMachine):
    """Requests that come, grow, fork, are preempted, return and end; the cache is small, so that it is often full."""

    make = None  # a policy from (num_blocks, block_size)

    @initialize(blocks=st.integers(1, 9), size=st.integers(1, 5))
    def begin(self, blocks, size):
        self.policy = type(self).make(blocks, size)
        self.shadow = ShadowCache(self.policy)
        self.promised = {}  # sequence -> how many tokens will find room for certain

    @rule(name=NAMES, token_ids=PROMPTS, max_tokens=st.sampled_from([0, 0, 1, 7]), tenant=st.sampled_from("aaab"))
    def reserve(self, name, token_ids, max_tokens, tenant):
        promised = len(token_ids) + max_tokens if max_tokens else 0
        self._admit(name, lambda: self.policy.reserve(name, token_ids, max_tokens, tenant), promised)

    def _admit(self, name, reserve, promised):
        before = self.policy.usage()
        if name in self.promised:
            with pytest.raises(CacheError, match=f"sequence {name}"):
                reserve()
            return
        try:
            hit = reserve()
        except OutOfMemoryError:
            assert self.policy.usage() == before, "what fails takes nothing"
            return
        self.promised[name] = promised
        assert 0 <= hit < len(self.policy.tokens(name))
        self.shadow.write(name, hit)
        self.policy.commit(name, len(self.policy.tokens(name)))

    @rule(name=NAMES, token_ids=TAILS, known=st.booleans())
    def append(self, name, token_ids, known):
        if name not in self.promised:
            with pytest.raises(CacheError, match=f"{name} holds nothing"):
                self.policy.append(name, token_ids)
            return
        before, length = self.policy.table(name), len(self.policy.tokens(name))
        try:
            if not known:  # room first, as for a step whose token is not read yet
                assert self.policy.make_room(name, length + len(token_ids)) == (self.policy.table(name) != before)
                before = self.policy.table(name)
            assert self.policy.append(name, token_ids) == (self.policy.table(name) != before)
        except OutOfMemoryError:
            assert length + len(token_ids) > self.promised[name], "a promise is kept"
            assert self.policy.table(name) == before and len(self.policy.tokens(name)) == length
            return
        self.shadow.write(name, length)
        self.policy.commit(name, length + len(token_ids) // 2)

    @rule(name=NAMES, guessed=st.integers(0, 9), right=st.integers(0, 9))
    def guess(self, name, guessed, right):
        """Room for guessed tokens, some of which turn out to be right."""
        if name not in self.promised:
            with pytest.raises(CacheError, match=f"{name} holds nothing"):
                self.policy.trim(name, guessed)
            return
        length, right = len(self.policy.tokens(name)), min(guessed, right)
        before = self.policy.table(name)
        try:
            self.policy.make_room(name, length + guessed)
        except OutOfMemoryError:
            assert length + guessed > self.promised[name] and self.policy.table(name) == before
            return
        self.policy.trim(name, length + right)
        self.check_trimmed(name, length + right)
        self.policy.append(name, [1] * right)
        self.shadow.write(name, length)

    def check_trimmed(self, name, num_tokens):
        """What was guessed and is wrong is given back."""
        assert len(self.policy.table(name)) == blocks_needed(num_tokens, self.policy.block_size)

    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent, child):
        if parent not in self.promised or child in self.promised:
            with pytest.raises(CacheError):
                self.policy.fork(parent, child)
            return
        before = self.policy.usage()
        try:
            self.policy.fork(parent, child)
        except OutOfMemoryError:
            assert self.policy.usage() == before
            return
        self.check_forked(before)
        self.promised[child] = self.promised[parent]
        self.shadow.written[child] = list(self.shadow.written[parent])

    def check_forked(self, before):
        """A fork takes no memory."""
        assert self.policy.usage().allocated == before.allocated

    @rule(name=NAMES)
    def free(self, name):
        if name not in self.promised:
            with pytest.raises(CacheError, match=f"{name} holds nothing"):
                self.policy.free(name)
            return
        self.policy.free(name)
        del self.promised[name], self.shadow.written[name]

    @rule(name=NAMES)
    def preempt_and_return(self, name):
        if name in self.promised:
            token_ids = self.shadow.written.pop(name)
            del self.promised[name]
            assert self.policy.preempt(name) == token_ids
            self._admit(name, lambda: self.policy.reserve(name, token_ids), 0)
            assert name in self.promised or len(self.promised) > 0, "what it held alone is free, and enough"

    @rule()
    def lose_trust(self):
        self.policy.forget_prefixes()

    @invariant()
    def books_and_contents_are_right(self):
        if hasattr(self, "shadow"):
            self.shadow.check()
            usage = self.policy.usage()
            assert 0 <= usage.holding <= usage.allocated and usage.allocated + usage.retained <= usage.total
            assert bool(usage.allocated) == bool(self.promised), "what has ended gave everything back"

    def teardown(self):
        if hasattr(self, "shadow"):
            for name in self.promised:
                self.policy.free(name)
            self.policy.check()
            assert self.policy.usage().allocated == self.policy.usage().holding == 0


def run_patiently(machine, examples):
    """Run a state machine for this number of examples of 40 steps."""
    patient = settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(machine, settings=patient)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_under_any_traffic(name):
    run_patiently(type(name, (AnyTraffic,), {"make": staticmethod(POLICIES[name])}), 150)
