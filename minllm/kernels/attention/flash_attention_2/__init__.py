"""FlashAttention-2: over 16-bit arrays, in float32, and over quantised caches."""
