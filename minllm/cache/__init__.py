"""The KV cache: its memory, and the policies that assign it to sequences."""
