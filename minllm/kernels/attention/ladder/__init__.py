"""The rungs that lessons run and engines do not: materialised scores, FlashAttention-1, a unified maximum."""
