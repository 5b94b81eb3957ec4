"""A tree of drafts: several guesses for one position, verified in one step.

Node 0 is the newest token, every other node a draft, and a path from the root down is one possible continuation of the text. The rows of a
verification are the nodes in order, parents before children. A row sees the context before the tree, its ancestors and itself:

    depth(0) = 0,   depth(j) = depth(parent(j)) + 1             position of row j = position of the newest token + depth(j)
    ancestors(j) = {j} ∪ ancestors(parent(j))                   one bit per node, in words of 32 bits

Each row has one cache slot, in the order of the nodes, so the first k nodes of a tree are a smaller tree with the same slots. All sequences
of a batch use the same tree, or its first nodes if they have fewer drafts; plain drafts are the tree in which each node has one child.
Sources: Miao et al., "SpecInfer", ASPLOS 2024, section 4 (topology-aware causal mask); Cai et al., "Medusa", ICML 2024, section 2.1.2.
"""

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.runtime.array_protocol import Array

WORD = 32  # bits per word


@dataclass(frozen=True)
class TokenTree:
    """A tree of drafts, with arrays computed from it. parents: the parent of each node; -1 for the root, which comes first."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        in_order = self.parents[:1] == (-1,) and all(0 <= parent < node for node, parent in enumerate(self.parents) if node)
        check(in_order, f"parents {self.parents} are not a tree: the first is -1, and others are the number of an earlier node")

    @classmethod
    def of_paths(cls, paths: list[tuple[int, ...]]) -> "TokenTree":
        """The tree with these paths, level by level: path (1, 0) is the likeliest child of the root's second child.

        Raises KernelArgumentError for a duplicate path, or if the parent or the previous sibling of a path is missing.
        """
        ordered = [(), *sorted(paths, key=lambda path: (len(path), path))]
        number = {path: node for node, path in enumerate(ordered)}
        check(len(number) == len(ordered), "the tree has a path twice, or an empty one")
        for path in ordered[1:]:
            needed = path[:-1] if path[-1] == 0 else (*path[:-1], path[-1] - 1)
            check(path[-1] >= 0 and needed in number, f"the tree has the path {path} and lacks {needed}, which comes before it")
        return cls((-1, *(number[path[:-1]] for path in ordered[1:])))

    @classmethod
    def parse(cls, text: str) -> "TokenTree":
        """The tree of a string such as "[(0,), (1,), (0, 0)]", vLLM's notation. Raises KernelArgumentError for other strings."""
        try:
            paths = ast.literal_eval(text)
            of_numbers = isinstance(paths, list) and all(isinstance(path, tuple) for path in paths)
            of_numbers = of_numbers and all(type(number) is int for path in paths for number in path)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            of_numbers = False
        check(of_numbers and len(paths) > 0, f"{text!r} is not a list of paths, which are tuples of numbers")
        return cls.of_paths(paths)

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> np.ndarray:
        """The depth of each node, 0 for the root: int32 [nodes]."""
        depths = np.zeros(len(self), np.int32)
        for node, parent in enumerate(self.parents[1:], start=1):
            depths[node] = depths[parent] + 1
        return depths

    @cached_property
    def sees(self) -> np.ndarray:
        """Whether a node (row) sees another (column), that is its ancestors and itself: bool [nodes, nodes]."""
        sees = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            sees[node] |= sees[parent]
        return sees

    @cached_property
    def levels(self) -> list[tuple[int, int]]:
        """(first node, one past the last node with children) of each level that has children. For trees in level order."""
        parents, levels = np.array(self.parents[1:]), []
        for depth in range(self.depths.max()):
            above = parents[self.depths[1:] == depth + 1]
            levels.append((int(np.argmax(self.depths == depth)), int(above.max()) + 1))
        return levels

    @classmethod
    def lookahead(cls, window: int, ngram_size: int, guesses: int) -> "TokenTree":
        """The rows of a step of lookahead decoding: W = window, N = ngram_size, G = guesses (kernels/speculation/lookahead.py).

        Node l * W + w is column w of level l, of N - 1 levels: a column hangs below its first node, and the nodes of level 0 are a chain
        from the root. After them come G chains of N - 1 drafts, which begin at the root.
        """
        levels, length = ngram_size - 1, ngram_size - 1
        parents = [column - 1 for column in range(window)] + [node - window for node in range(window, levels * window)]
        first = len(parents)
        parents += [first + node - 1 if node % length else 0 for node in range(guesses * length)]
        return cls(tuple(parents))

    def most_new(self, num_nodes: int) -> int:
        """The most new tokens that a verification of the first num_nodes nodes yields: the drafts of its longest path, and one more."""
        return int(self.depths[:num_nodes].max()) + 1

    def on(self, ops: Any, longest: int) -> "TreeArrays":
        """The tree as arrays of the machine `ops`. longest: the most tokens of a sequence."""
        children = [[child for child, parent in enumerate(self.parents) if parent == node] for node in range(len(self))]
        first = np.array([min(one, default=0) for one in children], np.int32)
        counts = np.array([len(one) for one in children], np.int32)
        arrays = np.array(self.parents, np.int32), self.depths, first, counts, words_of(self.sees)
        return TreeArrays(*(ops.array(one) for one in arrays), longest, self)


@dataclass(frozen=True)
class TreeArrays:
    """A TokenTree for kernels."""

    parents: Array  # int32 [nodes]
    depths: Array  # int32 [nodes]
    first_child: Array  # int32 [nodes]; for trees in level order, in which children are neighbours
    num_children: Array  # int32 [nodes]
    words: Array  # int32 [nodes, words]; bit a % 32 of word a // 32: whether the node sees node a
    longest: int  # the most tokens of a sequence; nodes beyond it are useless, and get the last position
    host: TokenTree

    def __len__(self) -> int:
        return self.parents.shape[0]


def check(is_right: bool, message: str) -> None:
    """Raise KernelArgumentError(message) unless is_right. Used instead of runtime/kernel.py's check, whose import loads the compiler."""
    if not is_right:
        raise KernelArgumentError(message)


def words_of(sees: np.ndarray) -> np.ndarray:
    """Pack rows of bits into words, the lowest bit first: bool [rows, nodes] -> int32 [rows, words]."""
    rows, nodes = sees.shape
    padded = np.zeros((rows, -(-nodes // WORD) * WORD), bool)
    padded[:, :nodes] = sees
    return np.packbits(padded, axis=1, bitorder="little").view("<i4").astype(np.int32)
