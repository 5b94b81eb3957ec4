"""Attention over a paged KV cache: a ladder of kernels, from materialised scores to split-KV decoding.

materialized, flash_attention_1 and split_unified_maximum, in ladder/, are for lessons: no engine launches them unless it is asked to.

    reference            NumPy: the equation; the CPU engine's attention, and the oracle of all kernels
    materialized         the first version one would write: scores in memory, softmax in place, times V; K stored transposed
    flash_attention_1    online softmax, outer loop over keys, state rescaled in memory
    flash_attention_2    outer loop over queries, state in registers, tensor cores: for prompts
    flash_attention_2_float32  the same in float32, without tensor cores; flash_attention_2 calls it
    fixed_split          splits of a fixed number of keys: batch-invariant (a row's bits do not depend on the batch); a few rows cost as
                         much as one
    flash_attention_3    warp specialisation: copies, GEMMs and softmax overlap, on Hopper: for prompts
    split_kv             Flash-Decoding: the context split over many blocks, and a merge: for decode steps
    split_tensor_core    the same on tensor cores, from rings in shared memory; equal shares for ragged batches, merged in one launch
    split_unified_maximum  split_tensor_core without the running maximum, as in FlashDecoding++
    split_cluster        split_tensor_core for one short sequence: the blocks of a cluster merge through each other's shared memory

Over a quantised cache (kernels/quantization), with QuantizedCaches as key_cache and value_cache below:

    flash_attention_2_quantized  flash_attention_2 that dequantises tiles on their way to shared memory: for prompts
    flash_attention_3_float8  flash_attention_3 that multiplies the codes of fp8_e4m3 themselves, on Hopper: for prompts
    split_quantized      split_tensor_core that multiplies the codes themselves on tensor cores: for decode steps

Three more take other arguments. If the newest keys and values are kept in full precision beside the codes (a residual window),
residual_window runs one variant on the codes and one on the recent keys, and merges their outputs by the log-sum-exp of each row
(merge_states). tree computes the nodes of a draft tree, each of which sees its ancestors. soft_capped bounds the scores, as in Gemma 2.

variants.py is the table of all variants, choice.py says which one serves which call. Every variant is a module or an object with two
functions:

    attention(query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale,
              sliding_window=0, max_query_len=None, workspace=None, stream=None)
    workspace_shapes(query, key_cache, block_tables) -> {name: (shape, dtype)}

    query          [T, heads, head_dim], float32, float16 or bfloat16, head_dim a multiple of 8 up to 256; `out` the same, written here
    key_cache      [num_blocks, block_size, kv_heads, head_dim]; value_cache the same
    query_start    int32 [B + 1]: sequence b owns rows query_start[b] to query_start[b + 1]; rows of no sequence are not written
    context_lens   int32 [B]: keys visible to sequence b, including its new tokens; 0 for padding, whose rows become zeros
    block_tables   int32 [B, max_blocks]
    sliding_window 0, or the number of newest keys that each row sees, including its own
    max_query_len  upper bound, known on the host, on the new tokens of one sequence; default T. Grids depend on it, never on device data
    workspace      {name: array} as listed by workspace_shapes; counts, int32, must begin as zeros (see common/workspace.py)

NumPy arrays run in the simulator, device arrays on the GPU. Unsuitable arguments raise KernelArgumentError.
"""

from minllm.kernels.attention.variants import VARIANTS

__all__ = ["VARIANTS"]
