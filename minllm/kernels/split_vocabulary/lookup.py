"""Embeddings of the tokens with rows on this rank, and zeros for the others.

    out[t, :] = rows[id_t - first, :] + position_embedding[position_t, :]    if first <= id_t < first + size, else 0

The sum over all ranks is the embedding, exactly: all terms but one are zero. At most 2 * T * hidden numbers are moved; without positions
there is no arithmetic. Threads to data: one block per token, one element per thread and iteration; it is a small part of a step anyway.
"""

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128


def split_embedding_reference(token_ids, rows, first, positions=None, position_embedding=None):
    """[T, hidden] in the dtype of rows [size, hidden], the embeddings of the tokens from id `first` on; the tables are added in float32."""
    own = token_ids - first
    is_own = (own >= 0) & (own < len(rows))
    out = np.zeros((len(token_ids), rows.shape[1]), rows.dtype)
    out[is_own] = rows[own[is_own]]
    if position_embedding is not None:
        wide = out[is_own].astype(np.float32) + position_embedding[positions[is_own]].astype(np.float32)
        out[is_own] = wide.astype(rows.dtype)
    return out


@kernel(dependent_launch=True)
def split_embedding_kernel(token_ids, rows, first, positions, position_embedding, has_positions, out):
    """token_ids, positions [T]; rows [size, H]; position_embedding [P, H]; out [T, H]."""
    wait_for_predecessors()
    token = cuda.blockIdx.x
    row = token_ids[token] - first
    is_own = 0 <= row < rows.shape[0]
    i = cuda.threadIdx.x
    while i < out.shape[1]:
        value = float32(0)
        if is_own:
            value = float32(rows[row, i])
            if has_positions:
                value += float32(position_embedding[positions[token], i])
        out[token, i] = value
        i += BLOCK


def split_embedding(token_ids, rows, first, out, positions=None, position_embedding=None, stream=None):
    """Write the embeddings of this rank's tokens, and zeros, into `out` [T, hidden]; arguments as in split_embedding_reference, tables and
    out of one dtype. Raises KernelArgumentError for other shapes and dtypes."""
    check((positions is None) == (position_embedding is None), "positions and position_embedding come together: give both or neither")
    check_array("rows", rows, FLOAT_DTYPES, size=None, hidden=None)
    tokens, hidden = token_ids.shape[0], rows.shape[1]
    check_array("token_ids", token_ids, INDEX_DTYPES, tokens=None)
    check_array("out", out, (rows.dtype,), tokens=tokens, hidden=hidden)
    has_positions = positions is not None
    if has_positions:
        check_array("positions", positions, INDEX_DTYPES, tokens=tokens)
        check_array("position_embedding", position_embedding, (rows.dtype,), positions=None, hidden=hidden)
    else:  # a kernel's arguments are always arrays; these two are not read
        positions, position_embedding = token_ids, rows
    arguments = (token_ids, rows, int(first), positions, position_embedding, int(has_positions), out)
    launch(split_embedding_kernel, tokens, BLOCK, arguments, stream)
