"""New keys and values are written into the paged cache, each token at its slot."""


def append_reference(key, value, key_cache, value_cache, slot_mapping):
    """Write key and value [T, kv_heads, head_dim] into the caches, in place; a slot of -1 writes nothing.

    key_cache, value_cache: C-contiguous [num_blocks, block_size, kv_heads, head_dim]; slot_mapping: [T], block * block_size + offset.
    """
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    key_cache.reshape(-1, *key_cache.shape[2:])[slots] = key[written]
    value_cache.reshape(-1, *value_cache.shape[2:])[slots] = value[written]
