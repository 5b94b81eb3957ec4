"""Flat GEMM: up to 256 rows, on tensor cores at the speed of memory."""
