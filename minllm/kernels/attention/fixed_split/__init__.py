"""Attention in splits of a fixed number of keys, with the query heads of a KV head packed into one tile."""
