"""The two indexes against a plain table from text to block: what is inserted is found, what is removed is not, and nothing else changes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.cache.hash_chain import HashChain
from minllm.cache.radix_tree import RadixTree

SIZE = 2
TEXTS = st.lists(st.integers(0, 1), min_size=2, max_size=5)  # a number stands for a block's tokens
ACTIONS = st.lists(st.tuples(st.sampled_from(["insert", "go on", "remove"]), TEXTS, st.sampled_from("aaaab")), min_size=4, max_size=25)


def tokens(text):
    """SIZE tokens for each number, and one more that fills no block."""
    return [number for number in text for _ in range(SIZE)] + [9]


class Table:
    """The model: (tenant, numbers up to a block) -> block. In a tree, what lies behind a block goes with it."""

    def __init__(self, goes_together):
        self.blocks, self.goes_together = {}, goes_together

    def insert(self, text, tenant, blocks):
        for end, block in enumerate(blocks, 1):
            self.blocks.setdefault((tenant, *text[:end]), block)

    def find(self, text, tenant):
        found = (self.blocks.get((tenant, *text[:end])) for end in range(1, len(text) + 1))
        return list(itertools.takewhile(lambda block: block is not None, found))

    def remove(self, block):
        path = next(path for path, held in self.blocks.items() if held == block)
        lost = [other for other in self.blocks if other == path or (self.goes_together and other[: len(path)] == path)]
        return sorted(self.blocks.pop(other) for other in lost)


@pytest.mark.parametrize("make,goes_together", [(HashChain, False), (RadixTree, True)], ids=["hash chain", "radix tree"])
@given(actions=ACTIONS)
def test_an_index_is_a_table_of_texts(make, goes_together, actions):
    index, table, fresh = make(SIZE), Table(goes_together), itertools.count()
    for action, text, tenant in actions:
        if action == "remove":
            known = sorted(table.blocks.values())
            if known:
                block = known[int("".join(map(str, text)), 2) % len(known)]
                assert sorted(index.remove(block)) == table.remove(block)
        else:  # "go on": as a sequence does that has found the beginning of its text
            known = table.find(text, tenant) if action == "go on" else []
            blocks = known + [next(fresh) for _ in text[len(known) :]]
            index.insert(tokens(text)[:-1], tenant, blocks)
            table.insert(text, tenant, blocks)
        for path in itertools.product((0, 1), repeat=4):
            assert index.find(tokens(path), tenant) == table.find(path, tenant)
        assert all(block in index for block in table.blocks.values())
    index.clear()
    assert not any(block in index for block in table.blocks.values()) and index.find(tokens([0]), "a") == []


def test_a_tenant_leaves_nothing_behind_in_the_tree():
    """Neither one that only asked, nor one whose blocks are gone; names that look like the beginning of a text are none."""
    tree = RadixTree(SIZE)
    tree.insert(tokens([0, 1])[:-1], "one", [10, 11])
    assert tree.find(tokens([0, 1]), "two") == tree.find(tokens([0, 1]), "") == []
    assert tree.remove(10) == [10, 11]
    assert not tree._root.children


def test_an_edge_is_cut_above_a_fork():
    """Texts 0 1 0 and 0 1 1 part behind 0 1; then 0 0 cuts that edge, and what hung at its end hangs at the end of its second half."""
    tree = RadixTree(SIZE)
    for text, blocks in (([0, 1, 0], [10, 11, 12]), ([0, 1, 1], [10, 11, 13]), ([0, 0], [10, 14])):
        tree.insert(tokens(text)[:-1], "", blocks)
    assert tree.remove(12) == [12]
    assert tree.find(tokens([0, 0]), "") == [10, 14] and tree.find(tokens([0, 1, 1]), "") == [10, 11, 13]
    assert sorted(tree.remove(11)) == [11, 13]
    assert tree.find(tokens([0, 1, 0]), "") == [10] and tree.find(tokens([0, 0]), "") == [10, 14]
