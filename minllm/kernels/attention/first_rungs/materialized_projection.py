"""The projection kernels of the first rung, and a decoder that runs all five kernels token by token.

    k = Wk x     v = Wv x          for every token x of a new prompt
    k = Wk x     v = Wv x     q = Wq x          for the latest token x of each sequence

FLOPs: 2 * hidden per element of k, v or q. Bytes: without caches, each weight once per token, that is 2 FLOPs per `itemsize` bytes,
the arithmetic intensity of a GEMV (and the elements of x once per row of weights, from caches). Threads to data: one thread per
element of the result; neighbouring threads read different rows of the weight, far apart in memory. The matmul lessons improve on this;
here it is one loop.

`MaterializedDecoder` owns the weights and the caches of one attention layer: K transposed, [batch, kv_heads, head_dim, max_len], and
V as [batch, max_len, kv_heads, head_dim], a paged cache with one block per sequence. Lengths give the used part of each row,
so sequences of a batch may differ in length, and a new prompt can replace a finished sequence.
"""

import numpy as np
from numba import cuda, float32

from minllm.kernels.attention.first_rungs.materialized import THREADS, attend
from minllm.runtime.kernel import check, kernel, launch


@cuda.jit(device=True)
def dot_row(weight, feature, inputs, first, second):
    """The dot product of weight[feature] and inputs[first, second]."""
    total = float32(0.0)
    for i in range(weight.shape[1]):
        total += float32(weight[feature, i]) * float32(inputs[first, second, i])
    return total


@kernel
def fill_new_key_value_kernel(
    inputs,  # [new sequences, max tokens, hidden]
    input_lens,  # [new sequences]
    rows,  # the batch row of each new sequence; [new sequences]
    key_weight,  # [kv_heads * head_dim, hidden]
    value_weight,  # the same
    key_transposed,  # [batch, kv_heads, head_dim, max_len]
    value_cache,  # [batch, max_len, kv_heads, head_dim]
):
    """K and V of all tokens of new prompts: one element of k and the same element of v per thread."""
    feature = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    token, sequence = cuda.blockIdx.y, cuda.blockIdx.z
    if feature < key_weight.shape[0] and token < input_lens[sequence]:
        row, head_dim = rows[sequence], key_transposed.shape[2]
        head, dim = feature // head_dim, feature % head_dim
        key_transposed[row, head, dim, token] = dot_row(key_weight, feature, inputs, sequence, token)
        value_cache[row, token, head, dim] = dot_row(value_weight, feature, inputs, sequence, token)


@kernel
def project_latest_kernel(
    inputs,  # [batch, 1, hidden]: the latest token of each sequence
    context_lens,  # [batch], including that token; 0: the row is unused
    query_weight,  # [heads * head_dim, hidden]
    key_weight,  # [kv_heads * head_dim, hidden]
    value_weight,  # the same
    query,  # [batch, heads, head_dim]
    key_transposed,  # [batch, kv_heads, head_dim, max_len]
    value_cache,  # [batch, max_len, kv_heads, head_dim]
):
    """q, k and v of the latest token, k and v written to its slot in the caches: one element of each per thread."""
    feature = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y
    head_dim, position = key_transposed.shape[2], context_lens[row] - 1
    head, dim = feature // head_dim, feature % head_dim
    if position < 0:
        return
    if feature < query_weight.shape[0]:
        query[row, head, dim] = dot_row(query_weight, feature, inputs, row, 0)
    if feature < key_weight.shape[0]:
        key_transposed[row, head, dim, position] = dot_row(key_weight, feature, inputs, row, 0)
        value_cache[row, position, head, dim] = dot_row(value_weight, feature, inputs, row, 0)


class MaterializedDecoder:
    """One attention layer that decodes a batch token by token, with five kernels.

    query_weight [heads * head_dim, hidden], key_weight and value_weight [kv_heads * head_dim, hidden]: NumPy arrays of one dtype.
    to_array copies a host array to the device: the simulator by default, a GPU with minllm.runtime.memory.to_device.
    """

    def __init__(self, query_weight, key_weight, value_weight, head_dim, batch, max_len, to_array=np.ascontiguousarray):
        dtype = query_weight.dtype
        self.heads, self.kv_heads = query_weight.shape[0] // head_dim, key_weight.shape[0] // head_dim
        self.head_dim, self.max_len, self.to_array = head_dim, max_len, to_array
        self.weights = [to_array(weight) for weight in (query_weight, key_weight, value_weight)]
        self.key_transposed = to_array(np.zeros((batch, self.kv_heads, head_dim, max_len), dtype))
        self.value_cache = to_array(np.zeros((batch, max_len, self.kv_heads, head_dim), dtype))
        self.query = to_array(np.zeros((batch, self.heads, head_dim), dtype))
        self.scores = to_array(np.zeros((batch, self.heads, max_len), np.float32))
        self.lengths = np.zeros(batch, np.int32)  # tokens in the caches, kept on the host
        self.query_start = to_array(np.arange(batch + 1, dtype=np.int32))
        self.block_tables = to_array(np.arange(batch, dtype=np.int32)[:, None])

    def insert(self, rows, prompts):
        """Start new sequences in `rows` of the batch: write the K and V of `prompts`, a list of [tokens, hidden], to the caches.

        Raises KernelArgumentError for a prompt of more than max_len tokens.
        """
        lens = np.array([len(prompt) for prompt in prompts], np.int32)
        check(lens.max() <= self.max_len, f"a prompt has {lens.max()} tokens; the cache holds {self.max_len} a sequence")
        inputs = np.zeros((len(prompts), lens.max(), prompts[0].shape[1]), prompts[0].dtype)
        for i, prompt in enumerate(prompts):
            inputs[i, : len(prompt)] = prompt
        self.lengths[rows] = lens
        grid = (-(-self.kv_heads * self.head_dim // THREADS), int(lens.max()), len(prompts))
        new = [self.to_array(array) for array in (inputs, lens, np.asarray(rows, np.int32))]
        launch(fill_new_key_value_kernel, grid, THREADS, (*new, *self.weights[1:], self.key_transposed, self.value_cache))

    def decode(self, latest, out, scale=None):
        """Attention of one more token per sequence: latest [batch, hidden] on the host -> out [batch, heads, head_dim] on the device.

        Rows without a sequence become zeros. Raises KernelArgumentError if a sequence has max_len tokens already.
        """
        check(self.lengths.max() < self.max_len, f"a sequence has {self.lengths.max()} tokens already; the cache holds {self.max_len}")
        self.lengths[self.lengths > 0] += 1
        context_lens = self.to_array(self.lengths.copy())
        inputs = self.to_array(latest[:, None, :])
        grid = (-(-self.heads * self.head_dim // THREADS), len(latest))
        caches = (self.key_transposed, self.value_cache)
        launch(project_latest_kernel, grid, THREADS, (inputs, context_lens, *self.weights, self.query, *caches))
        scale = self.head_dim**-0.5 if scale is None else scale
        lens = (self.query_start, context_lens)
        attend(self.query, *caches, self.scores, out, lens, self.block_tables, scale, sliding_window=0, longest=1, stream=None)
