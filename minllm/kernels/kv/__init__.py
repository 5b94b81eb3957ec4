"""Kernels that write new keys and values to the cache, at the slots that the cache manager chose."""
