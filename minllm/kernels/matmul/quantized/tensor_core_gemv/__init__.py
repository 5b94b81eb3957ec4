"""GEMV on tensor cores: up to 16 rows of x times quantised weights, one row fused with the operations around it (gemv.py)."""
