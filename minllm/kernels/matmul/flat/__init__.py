"""Flat GEMM: up to 256 rows, memory-bound, on tensor cores."""
