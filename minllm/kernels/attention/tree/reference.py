"""Attention of the nodes of a draft tree over a paged KV cache, in NumPy.

A sequence has C keys, of which the last Q + f belong to nodes 0, 1, ... of the tree, and Q rows for the nodes from f on. Row i sees

    keys p < b, before the tree                            b = C - Q - f
    the key of node a, p = b + a, if a is an ancestor of node f + i or that node itself

and softmax over them is that of attention/reference.py. The position of node j is b + depth(j): with a sliding window of w, a row sees only
keys less than w positions before its own. A tree in which each node has one child is causal attention. Sources:
kernels/speculation/token_tree.py.
"""

import numpy as np

from minllm.kernels.attention.reference import attend, gather_context


def tree_attention_reference(
    query, key_cache, value_cache, query_start, context_lens, block_tables, sees, first_node, scale, sliding_window=0, soft_cap=0.0
):
    """Attention of B sequences whose rows are nodes of one tree; arguments as in attention/reference.py, and

    sees        bool [nodes, nodes]: whether a node (row) sees another (column); true for its ancestors and itself
    first_node  the node of each sequence's first row

    Returns [T, heads, head_dim] in the query's dtype; rows of no sequence are zeros. Computes in float32 (in float64 for a float64 query).
    """
    compute_dtype = np.float64 if query.dtype == np.float64 else np.float32
    out = np.zeros(query.shape, query.dtype)
    for sequence, context_len in enumerate(np.asarray(context_lens).tolist()):
        start, stop = int(query_start[sequence]), int(query_start[sequence + 1])
        if context_len == 0 or start == stop:
            continue
        keys = gather_context(key_cache, block_tables[sequence], 0, context_len).astype(compute_dtype, copy=False)
        values = gather_context(value_cache, block_tables[sequence], 0, context_len).astype(compute_dtype, copy=False)
        visible = visible_nodes(sees, first_node, stop - start, context_len, sliding_window)
        out[start:stop] = attend(query[start:stop].astype(compute_dtype, copy=False), keys, values, scale, visible, soft_cap)
    return out


def visible_nodes(sees, first_node, rows, context_len, sliding_window=0):
    """The mask, bool [rows, context_len], of `rows` nodes from first_node on; the last of them owns the last key."""
    before = max(0, context_len - rows - first_node)
    nodes = slice(first_node, first_node + rows)
    visible = np.ones((rows, context_len), bool)
    visible[:, before:] = sees[nodes, : context_len - before]
    if sliding_window > 0:
        depths = sees.sum(axis=1) - 1
        key_positions = np.concatenate([np.arange(before), before + depths[: context_len - before]])
        visible &= before + depths[nodes, None] - key_positions < sliding_window
    return visible
