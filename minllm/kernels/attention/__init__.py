"""Attention over a paged KV cache: one ladder of kernels, from materialised scores to split-KV decoding.

    reference            NumPy: the equation; the CPU engine's attention, and the oracle of all others
    materialized         the first version that one would write: scores in memory, softmax in place, times V; K stored transposed
    flash_attention_1    online softmax, outer loop over keys, state rescaled in memory
    flash_attention_2    outer loop over queries, state in registers, tensor cores: for prompts
    flash_attention_3    warp specialisation: copies, GEMMs and softmax overlap, on Hopper: for prompts
    split_kv             the context split over many blocks, and a merge: for decode steps
    split_tensor_core    the same on tensor cores, from rings in shared memory, equal shares for ragged batches, merged in one launch;
                         one short sequence goes on to split_cluster
    split_unified_maximum  split_tensor_core without the running maximum, as in FlashDecoding++

Over a quantised cache (kernels/quantization), where key_cache and value_cache below are QuantizedCaches:

    flash_attention_2_quantized  flash_attention_2 that dequantises tiles on their way to shared memory: for prompts
    split_quantized      split_tensor_core whose tensor cores multiply the codes themselves: for decode steps

If the newest keys and values are kept in full precision beside the codes (a residual window), residual_window runs one variant on the
codes and one on the recent keys, and merges their outputs by the log-sum-exp of each row (merge_states). Its functions take more arguments.

Every variant but the reference is a module with two functions:

    attention(query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale,
              sliding_window=0, max_query_len=None, workspace=None, stream=None)
    workspace_shapes(query, key_cache, block_tables) -> {name: (shape, dtype)}

    query          [T, heads, head_dim], float32, float16 or bfloat16, head_dim a multiple of 8 up to 256; `out` the same, written here
    key_cache      [num_blocks, block_size, kv_heads, head_dim]; value_cache the same
    query_start    int32 [B + 1]: sequence b owns rows query_start[b] to query_start[b + 1] (rows of no sequence are not written)
    context_lens   int32 [B]: keys visible to sequence b, including its new tokens; 0 for padding, whose rows become zeros
    block_tables   int32 [B, max_blocks]
    sliding_window 0, or the number of newest keys that each row sees, including its own
    max_query_len  a bound, known on the host, on the new tokens of one sequence; default T. Grids depend on it, never on device data
    workspace      {name: array} as listed by workspace_shapes; counts, int32, must begin as zeros (see common/arguments.py)

NumPy arrays run in the simulator, device arrays on the GPU. Arguments that do not fit raise KernelArgumentError.

This file imports nothing that needs Numba: the CPU engine uses the reference on machines without it.
"""

import importlib
from collections.abc import Mapping


class Variants(Mapping):
    """Name -> module of a variant, imported on first use."""

    def __init__(self, **modules):
        self.modules = modules

    def __getitem__(self, name):
        if name not in self.modules:
            raise KeyError(f"no attention kernel is called {name!r}; there are {', '.join(self.modules)}")
        return importlib.import_module(f"{__name__}.{self.modules[name]}")

    def __iter__(self):
        return iter(self.modules)

    def __len__(self):
        return len(self.modules)


VARIANTS = Variants(
    materialized="first_rungs.materialized",
    flash_attention_1="first_rungs.flash_attention_1",
    flash_attention_2="flash_attention_2.flash_attention_2",
    flash_attention_3="flash_attention_3.flash_attention_3",
    split_kv="split_kv.split_kv",
    split_tensor_core="split_tensor_core.split_tensor_core",
    split_unified_maximum="split_tensor_core.unified_maximum",
)
QUANTIZED_VARIANTS = Variants(  # variants that read QuantizedCaches; all others read arrays
    flash_attention_2_quantized="flash_attention_2.quantized", split_quantized="split_quantized.split_quantized"
)
DECODE_VARIANTS = ("split_kv", "split_tensor_core", "split_unified_maximum", "split_quantized")  # limited to one new token per sequence


def choose(max_query_len, dtype=None, compute_capability=None):
    """The fastest variant's name: split_tensor_core if every sequence has at most one new token, else FlashAttention.

    FlashAttention-3 on Hopper (compute capability (9, 0)) for 16-bit dtypes, else FlashAttention-2, which supports every dtype.
    """
    if max_query_len == 1:
        return "split_tensor_core"
    sixteen_bits = dtype is not None and str(dtype) in ("float16", "bfloat16")
    return "flash_attention_3" if compute_capability == (9, 0) and sixteen_bits else "flash_attention_2"


def choose_quantized(max_query_len, key_cache):
    """The fastest variant's name over a quantised cache; split_quantized needs the scales of a block to be whole 16 bytes."""
    whole_chunks = key_cache.format.is_float or key_cache.shape[1] % 4 == 0
    return "split_quantized" if max_query_len == 1 and whole_chunks else "flash_attention_2_quantized"
