"""KV cache managers."""
