"""Trees of drafts for tests, and slots whose drafts are their nodes."""

from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TokenTree
from tests.kernels.speculation.cases import make_states

ARRAYS = SimpleNamespace(array=np.array)  # the `array` of NumpyOps
LEVELS = TokenTree.of_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0)])
LOOKAHEAD = TokenTree.lookahead(5, 4, 3)
CHAIN = TokenTree(tuple(range(-1, 9)))


def trees(most=20):
    """Any trees, with nodes in any order that has parents before children."""
    parents = st.integers(1, most).flatmap(lambda count: st.tuples(*(st.integers(0, node) for node in range(count))))
    return parents.map(lambda found: TokenTree((-1, *found)))


def path_of(tree, node):
    """The nodes from the root to this one."""
    return [node] if node == 0 else [*path_of(tree, tree.parents[node]), node]


def tree_states(tree, **sizes):
    """`make_states` of slots that draft this tree."""
    state, drafts = make_states(width=12, num_drafts=len(tree) - 1, **sizes)
    drafts.tree = tree.on(ARRAYS, 1000)
    return state, drafts


def on_device(drafts, device):
    """A copy of drafts and their tree on the device."""
    tree = drafts.tree.host.on(device, drafts.tree.longest)
    return DraftState(device.array(drafts.drafts), device.array(drafts.token_history), tree=tree)
