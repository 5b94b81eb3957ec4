"""Tensor-core GEMV over quantised weights for one row of x, fused with the operations around it in a decode step (gemv.py)."""
