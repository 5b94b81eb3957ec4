"""Attention over a quantised cache whose newest tokens are kept in full precision."""
