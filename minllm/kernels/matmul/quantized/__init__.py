"""GEMM by quantised weights: GEMVs over the codes, products on Hopper's tensor cores, and codes widened to 16 bits elsewhere.

    rows.py       rows of x as int8 or fp8 codes with a scale each
    int8.py       W8A8: four products of int8 per instruction
    fp8.py        W8A8: products of 8-bit floats in float32
    fp8_block.py  the same with scales for blocks of 128 x 128; row_groups.py quantises the rows of x for it
    fp8_block_wgmma.py  more than 8 rows of it on Hopper, with two-level accumulation
    int8_groups.py  W8A16: int8 in groups with a scale
    int4_naive.py  W4A16: nibbles in groups with a scale, a byte per lane; int4.py: 16 bytes per lane
    tensor_core_gemv/  one row on tensor cores, with all that is before and behind the product: int4, NF4, int8, fp8
    batched_gemv/  W4A16: up to 16 rows on Hopper's tensor cores, K divided among the blocks of a cluster; int4, NF4
    int4_wgmma.py  W4A16: up to 64 rows on Hopper, weights in wgmma's registers
    mixed_input/  W4A16 and W8A16: any number of rows on Hopper, codes that become 16 bits in registers; int4, NF4, int8 in groups
    tensor_core.py  W8A8: any number of rows on Hopper, with the kernels of flat/ and wgmma/
    nf4.py        W4A16: nibbles that look up one of 16 numbers; nf4_pairs.py: a byte looks up two
    sums.py       what GEMVs with scales per group have in common
    many_rows.py  the widened matrix, and the GEMM of 16-bit weights

A GEMV reads the codes once: half or a quarter of the bytes that 16-bit weights take. Speeds: docs/quantised-weights.md.
"""
