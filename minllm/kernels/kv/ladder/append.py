"""Write new keys and values into the paged cache, each token at its slot.

    key_cache[slot // block_size, slot % block_size] = key[t],  slot = slot_mapping[t];  values likewise;  slot -1 writes nothing

T tokens of R = kv_heads * head_dim elements of b bytes: no FLOPs; 2 T R b bytes read and as many written; arithmetic intensity 0,
so it is memory-bound.

One block per token; each thread copies 16 bytes at a time, of the key and of the value. The cache is addressed as [slots, kv_heads,
head_dim], which needs no division, with 64-bit offsets: 32,768 blocks of 16 slots of 8 heads of 128 exceed 2**31 bytes. There may be
gaps between tokens (layout.py).
Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
"""

from numba import cuda

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.kv.ladder.append_quantized import append_quantized
from minllm.kernels.kv.layout import check_caches
from minllm.kernels.quantization.cache import is_quantized
from minllm.kernels.vector import vectors_per_row
from minllm.ptx import load_128, store_128, token_stride
from minllm.runtime.kernel import kernel, launch

BLOCK = 128


@kernel
def append_kernel(key, value, key_cache, value_cache, slot_mapping):
    """Any row length, one element per thread: key, value [T, R]; caches [slots, R]; slot_mapping [T]."""
    token = cuda.blockIdx.x
    # exercise: kv.append
    slot = slot_mapping[token]
    if slot < 0:
        return
    i = cuda.threadIdx.x
    while i < key.shape[1]:
        key_cache[slot, i] = key[token, i]
        value_cache[slot, i] = value[token, i]
        i += BLOCK
    # end exercise


@kernel
def append_vector_kernel(key, value, key_cache, value_cache, slot_mapping, width):
    """Rows of whole, aligned vectors of `width` elements; arrays as in `append_kernel`."""
    token, row = cuda.blockIdx.x, key.shape[1]
    stride = token_stride(key_cache, row)
    slot = slot_mapping[token]
    if slot < 0:
        return
    i = cuda.threadIdx.x * width
    while i < row:
        key0, key1, key2, key3 = load_128(key, token * row + i)
        value0, value1, value2, value3 = load_128(value, token * row + i)
        store_128(key_cache, slot * stride + i, key0, key1, key2, key3)
        store_128(value_cache, slot * stride + i, value0, value1, value2, value3)
        i += BLOCK * width


def append(key, value, key_cache, value_cache, slot_mapping, stream=None):
    """Write key and value [T, kv_heads, head_dim] into the caches; arguments as in `append_reference`, one dtype, slots int32.

    QuantizedCaches go to append_quantized.py. The kernel does not check that slots lie inside the cache or that no two tokens share one.
    Raises KernelArgumentError for shapes and dtypes.
    """
    if is_quantized(key_cache) or is_quantized(value_cache):
        append_quantized(key, value, key_cache, value_cache, slot_mapping, stream)
        return
    check_array("key", key, FLOAT_DTYPES, tokens=None, kv_heads=None, head_dim=None)
    tokens, kv_heads, head_dim = key.shape
    check_array("value", value, (key.dtype,), tokens=tokens, kv_heads=kv_heads, head_dim=head_dim)
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=tokens)
    check_caches(key_cache, value_cache, key.dtype, kv_heads, head_dim)
    row, slots = kv_heads * head_dim, key_cache.shape[0] * key_cache.shape[1]
    arrays = key.reshape(tokens, row), value.reshape(tokens, row), key_cache.reshape(slots, row), value_cache.reshape(slots, row)
    if vectors := vectors_per_row(row, *arrays):
        launch(append_vector_kernel, tokens, BLOCK, (*arrays, slot_mapping, ceil_div(row, vectors)), stream)
    else:
        launch(append_kernel, tokens, BLOCK, (*arrays, slot_mapping), stream)
