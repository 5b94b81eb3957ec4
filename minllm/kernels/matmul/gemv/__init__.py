"""GEMV: up to 8 rows, memory-bound, with the neighbouring operations fused in."""
