"""The batched GEMV: two to sixteen rows of x times int4 or NF4, on tensor cores, K divided among the blocks of a cluster."""
