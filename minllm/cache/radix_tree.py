"""A prefix index by a radix tree of the cached texts, as in SGLang.

A path from the root spells a text. An edge carries tokens and their blocks, without a branch in between; where two texts diverge, an edge
is split. Edges begin and end at block boundaries, so the blocks of a path form a normal block table. A lookup compares tokens and computes
no hash; evicting a block also evicts all continuations below it. Each tenant has its own branches: the label of a text's first block begins
with the tenant's name.

Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024, section 3 (RadixAttention).
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from minllm.cache.prefix_sharing import PrefixIndex

Label = tuple[int | str, ...]  # the tokens of a block; for a text's first block, preceded by the tenant


@dataclass(eq=False, slots=True)
class Node:
    """A node, the blocks and labels of the edge to it, and children by first label."""

    labels: list[Label]
    blocks: list[int]
    parent: "Node | None"
    children: dict[Label, "Node"] = field(default_factory=dict)


class RadixTree(PrefixIndex):
    """The tree of all texts, over blocks of `block_size` tokens."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self._root = Node([], [], None)
        self._node_of: dict[int, Node] = {}  # block -> the node at the end of its edge

    def find(self, token_ids: Many[int], tenant: str) -> list[int]:
        """See PrefixIndex."""
        return self._walk(self._root, 0, self._labels(token_ids, (tenant,)))[2]

    def insert(self, token_ids: Many[int], tenant: str, blocks: Many[int]) -> None:
        """See PrefixIndex. The walk begins after the last block that is already in the tree."""
        known = next((i for i in range(len(blocks), 0, -1) if blocks[i - 1] in self._node_of), 0)
        node, offset = self._root, 0
        if known:
            node = self._node_of[blocks[known - 1]]
            offset = node.blocks.index(blocks[known - 1]) + 1
        labels = self._labels(token_ids[known * self.block_size :], () if known else (tenant,))
        node, offset, passed = self._walk(node, offset, labels)
        new = len(passed)
        if new == len(labels):
            return
        if offset < len(node.labels):
            self._split(node, offset)
        if node.parent is None or node.children:
            node.children[labels[new]] = node = Node([], [], node)
        node.labels += labels[new:]
        node.blocks += blocks[known + new :]
        self._node_of.update(dict.fromkeys(blocks[known + new :], node))

    def remove(self, block: int) -> list[int]:
        """See PrefixIndex: the block, the rest of its edge, and everything below."""
        node = self._node_of[block]
        offset = node.blocks.index(block)
        lost = node.blocks[offset:]
        below = list(node.children.values())
        while below:
            child = below.pop()
            lost += child.blocks
            below += child.children.values()
        if offset == 0 and node.parent is not None:
            del node.parent.children[node.labels[0]]
        node.labels, node.blocks, node.children = node.labels[:offset], node.blocks[:offset], {}
        for forgotten in lost:
            del self._node_of[forgotten]
        return lost

    def __contains__(self, block: int) -> bool:
        return block in self._node_of

    def clear(self) -> None:
        """See PrefixIndex."""
        self._root = Node([], [], None)
        self._node_of.clear()

    def _labels(self, token_ids: Many[int], first: tuple[str, ...] = ()) -> list[Label]:
        """The labels of the full blocks; `first` precedes the tokens in the first label."""
        ends = range(self.block_size, len(token_ids) + 1, self.block_size)
        labels = [tuple(token_ids[end - self.block_size : end]) for end in ends]
        return [first + labels[0], *labels[1:]] if labels else []

    def _walk(self, node: Node, offset: int, labels: list[Label]) -> tuple[Node, int, list[int]]:
        """Walk from block `offset` of a node's edge while labels match -> (last node, offset in its edge, blocks passed)."""
        passed = []
        for label in labels:
            if offset == len(node.labels) and label in node.children:
                node, offset = node.children[label], 0
            elif offset == len(node.labels) or node.labels[offset] != label:
                break
            passed.append(node.blocks[offset])
            offset += 1
        return node, offset, passed

    def _split(self, node: Node, offset: int) -> None:
        """Split an edge: `node` keeps the blocks before `offset`, a new node below it gets the others and the children."""
        lower = Node(node.labels[offset:], node.blocks[offset:], node, node.children)
        for child in lower.children.values():
            child.parent = lower
        node.labels, node.blocks, node.children = node.labels[:offset], node.blocks[:offset], {lower.labels[0]: lower}
        self._node_of.update(dict.fromkeys(lower.blocks, lower))
