"""GEMV on tensor cores over quantised weights, for one row of x, with the neighbouring operations of a decode step fused in (gemv.py)."""
