"""The first rungs: attention as one would first write it, and FlashAttention-1."""
