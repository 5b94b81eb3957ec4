"""The first rungs: attention as one would write it first, and FlashAttention-1."""
