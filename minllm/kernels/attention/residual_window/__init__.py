"""Attention over a quantised cache with the newest tokens in full precision."""
