"""GEMM by quantised weights: a GEMV over the codes for up to 8 rows of x, codes widened to 16 bits for more.

    rows.py       rows of x as int8 or fp8 codes with a scale each
    int8.py       W8A8: four products of int8 per instruction
    fp8.py        W8A8: products of 8-bit floats in float32
    fp8_block.py  the same with scales for blocks of 128 x 128; row_groups.py quantises the rows of x for it
    int8_groups.py  W8A16: int8 in groups with a scale
    int4.py       W4A16: nibbles in groups with a scale
    int4_tensor_core.py  W4A16: up to 16 rows on tensor cores, for groups of 128
    nf4.py        W4A16: nibbles that look up one of 16 numbers
    sums.py       what GEMVs with scales per group have in common
    many_rows.py  the widened matrix, and the GEMM of 16-bit weights

A GEMV reads the codes once: half or a quarter of the bytes that 16-bit weights take. No figure of these kernels is recorded yet: their
tilings are not tuned, and they have not been measured.
"""
