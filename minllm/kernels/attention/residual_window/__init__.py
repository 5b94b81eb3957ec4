"""Attention over a quantised cache whose newest tokens are in full precision."""
