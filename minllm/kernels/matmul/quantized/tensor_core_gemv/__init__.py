"""Tensor-core GEMV over quantised weights for one row of x, fused with the neighbouring operations of a decode step (gemv.py)."""
