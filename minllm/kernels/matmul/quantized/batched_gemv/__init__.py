"""The batched GEMV: two to sixteen rows of x times int4 or NF4 weights, on Hopper's tensor cores."""
