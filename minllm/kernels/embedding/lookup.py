"""Embedding lookup: hidden[t] = embedding[token_ids[t]] (+ position_embedding[positions[t]], learned, as in GPT-2).

T tokens of H elements of b bytes: no FLOPs (T H with positions); T H b bytes read (twice that with positions) and T H b written;
arithmetic intensity 0 (1 / 3b with positions), so it is memory-bound, and latency-bound for a few tokens: the row's address depends
on the id.

One block per token. Its threads copy the row in 16-byte vectors, so that each warp access covers 512 consecutive bytes.
Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", equation 2: h0 = U We + Wp.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.ptx import load_128, store_128
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128
VECTORS_PER_THREAD = 4


def embedding_reference(token_ids, embedding, positions=None, position_embedding=None):
    """The rows of `embedding` [vocabulary, hidden] for `token_ids` [T], in the table's dtype: [T, hidden].

    With `position_embedding` [max_positions, hidden], the row of each token's position is added in float32 and the sum is rounded once.
    """
    rows = embedding[token_ids]  # [T, hidden]
    if position_embedding is None:
        return rows
    wide = np.result_type(embedding.dtype, np.float32)
    return (rows.astype(wide, copy=False) + position_embedding[positions].astype(wide, copy=False)).astype(embedding.dtype, copy=False)


@kernel(dependent_launch=True)
def embedding_kernel(token_ids, embedding, positions, position_embedding, has_positions, out):
    """Any hidden size, one element per thread.

    token_ids, positions [T]; embedding [vocabulary, H]; position_embedding [P, H]; out [T, H].
    """
    wait_for_predecessors()
    token = cuda.blockIdx.x
    row = token_ids[token]
    # exercise: embedding.lookup
    i = cuda.threadIdx.x
    while i < out.shape[1]:
        if has_positions:
            out[token, i] = float32(embedding[row, i]) + float32(position_embedding[positions[token], i])
        else:
            out[token, i] = embedding[row, i]
        i += BLOCK
    # end exercise


@functools.cache
def embedding_vector_kernel(dtype, has_positions):
    """The kernel that moves vectors of `dtype`: arrays as in `embedding_kernel`, rows of whole, aligned vectors."""
    width, load, store = vector_access(dtype)
    step = BLOCK * width
    words = 4 * VECTORS_PER_THREAD

    @cuda.jit(device=True)
    def copy_vectors(table, row, out, at, hidden, i):
        """Copy the thread's vectors, table[row + i] and every `step` elements on, to out[at + i]: all loads before the first store."""
        held = cuda.local.array(words, uint32)
        for v in range(VECTORS_PER_THREAD):
            if i + v * step < hidden:
                held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3] = load_128(table, row + i + v * step)
        for v in range(VECTORS_PER_THREAD):
            if i + v * step < hidden:
                store_128(out, at + i + v * step, held[4 * v], held[4 * v + 1], held[4 * v + 2], held[4 * v + 3])

    @kernel(dependent_launch=True)
    def embedding_vector_kernel(token_ids, embedding, positions, position_embedding, out):
        wait_for_predecessors()
        token, hidden = cuda.blockIdx.x, out.shape[1]
        i = cuda.threadIdx.x * width
        if i >= hidden:
            return
        row = token_ids[token] * hidden
        while i < hidden:
            if has_positions:
                values, shift = cuda.local.array(width, float32), cuda.local.array(width, float32)
                load(embedding, row + i, values, 0)
                load(position_embedding, positions[token] * hidden + i, shift, 0)
                for k in range(width):
                    values[k] += shift[k]
                store(out, token * hidden + i, values, 0)
                i += step
            else:
                copy_vectors(embedding, row, out, token * hidden, hidden, i)
                i += VECTORS_PER_THREAD * step

    return embedding_vector_kernel


def embedding(token_ids, embedding, out, positions=None, position_embedding=None, stream=None):
    """Write the embeddings of `token_ids` [T] into `out` [T, hidden]; arguments as in `embedding_reference`, tables and out of one dtype.

    Token ids and positions must be inside their tables; the kernel does not check them. Raises KernelArgumentError for shapes and dtypes.
    """
    check((positions is None) == (position_embedding is None), "positions and position_embedding come together: give both or neither")
    check_array("embedding", embedding, FLOAT_DTYPES, vocabulary=None, hidden=None)
    check_array("token_ids", token_ids, INDEX_DTYPES, tokens=None)
    tokens, hidden = token_ids.shape[0], embedding.shape[1]
    check_array("out", out, (embedding.dtype,), tokens=tokens, hidden=hidden)
    has_positions = positions is not None
    if has_positions:
        check_array("positions", positions, INDEX_DTYPES, tokens=tokens)
        check_array("position_embedding", position_embedding, (embedding.dtype,), positions=None, hidden=hidden)
    else:  # a kernel's arguments are always arrays: these are not read
        positions, position_embedding = token_ids, embedding
    if vectors_per_row(hidden, embedding, position_embedding, out):
        chosen = embedding_vector_kernel(embedding.dtype, has_positions)
        launch(chosen, tokens, BLOCK, (token_ids, embedding, positions, position_embedding, out), stream)
    else:
        arguments = (token_ids, embedding, positions, position_embedding, int(has_positions), out)
        launch(embedding_kernel, tokens, BLOCK, arguments, stream)
