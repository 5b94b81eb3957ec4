"""GEMV: up to 8 rows at the speed of memory, with fused neighbours."""
