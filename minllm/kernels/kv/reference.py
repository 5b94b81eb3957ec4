"""The paged cache in NumPy: each new key and value goes to its slot."""

import numpy as np

from minllm.kernels.quantization.cache import is_quantized


def append_reference(key, value, key_cache, value_cache, slot_mapping):
    """Write key and value [T, kv_heads, head_dim] into the caches, in place; a slot of -1 writes nothing.

    key_cache, value_cache: [num_blocks, block_size, kv_heads, head_dim], or QuantizedCaches; slot_mapping: [T],
    block * block_size + offset.
    """
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    for new, cache in ((key[written], key_cache), (value[written], value_cache)):
        if is_quantized(cache):
            cache.put(slots, new)
        else:
            cache[np.divmod(slots, cache.shape[1])] = new
