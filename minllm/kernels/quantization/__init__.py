"""Formats of quantised KV caches, and the arithmetic from float32 to codes and back."""
