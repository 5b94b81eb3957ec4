"""Attention over a paged KV cache: one ladder of kernels, from materialised scores to split-KV decoding.

    reference            NumPy: the equation; the CPU engine's attention, and the oracle of all others
    materialized         the way one would write it first: scores in memory, softmax in place, times V; K kept transposed
    flash_attention_1    online softmax, loop over keys outside, state rescaled in memory
    flash_attention_2    loop over queries outside, state in registers, tensor cores: for prompts
    flash_attention_3    copies, GEMMs and softmax beside each other, on Hopper: for prompts
    split_kv             the context split over many blocks, and a merge: for decode steps
    split_tensor_core    the same on tensor cores, from rings in shared memory, fair shares for ragged batches, merged in one launch
    split_unified_maximum  that without the running maximum, as in FlashDecoding++
    split_cluster        that for one short sequence: the blocks of a cluster merge through each other's shared memory

Over a quantised cache (kernels/quantization), with QuantizedCaches as key_cache and value_cache below:

    flash_attention_2_quantized  flash_attention_2 that dequantises tiles on their way to shared memory: for prompts
    split_quantized      split_tensor_core on the codes themselves, which the tensor cores multiply: for decode steps

Two more take other arguments. residual_window is for caches that keep the newest keys and values as they are beside the codes: it runs one
variant on the codes and one on the recent keys, and merges both by the log-sum-exp of every row (merge_states). split_cascade reads a
prefix that all sequences share once for all of them; benchmarks measure it, and the engine does not use it.

variants.py is the table of them all, choice.py says which one serves which call. Every variant is a module with two functions:

    attention(query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale,
              sliding_window=0, max_query_len=None, workspace=None, stream=None)
    workspace_shapes(query, key_cache, block_tables) -> {name: (shape, dtype)}

    query          [T, heads, head_dim], float32, float16 or bfloat16, head_dim a multiple of 8 up to 256; `out` the same, written here
    key_cache      [num_blocks, block_size, kv_heads, head_dim]; value_cache the same
    query_start    int32 [B + 1]: sequence b owns rows query_start[b] to query_start[b + 1]; rows outside every sequence are not written
    context_lens   int32 [B]: keys visible to sequence b, its new tokens included; 0 for padding, whose rows become zeros
    block_tables   int32 [B, max_blocks]
    sliding_window 0, or the number of newest keys that each row sees, its own included
    max_query_len  a bound, known on the host, on the new tokens of one sequence; default T. Grids follow from it, never from device data
    workspace      {name: array} as workspace_shapes lists; counts, int32, must begin as zeros (common/arguments.py)

NumPy arrays run in the simulator, device arrays on the GPU. Arguments that do not fit raise KernelArgumentError.
"""

from minllm.kernels.attention.variants import VARIANTS

__all__ = ["VARIANTS"]
