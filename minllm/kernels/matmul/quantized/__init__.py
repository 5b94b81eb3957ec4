"""GEMV and GEMM with quantised weights: over the codes, or with codes widened to 16 bits.

    rows.py       rows of x as int8 or fp8 codes, one scale per row
    int8.py       W8A8: dp4a, four int8 products per instruction
    fp8.py        W8A8: fp8 codes converted to float32, then FMA
    fp8_block.py  the same with one scale per block of 128 x 128; row_groups.py quantises the rows of x for it
    fp8_block_wgmma.py  the GEMM of that format on Hopper, with two-level accumulation
    int4.py       W4A16: four-bit codes in groups that share a scale, 16 bytes per load (../ladder/int4_naive.py: one byte)
    tensor_core_gemv/  one row of x on tensor cores, fused with the operations before and after the GEMV: int4, NF4, int8, fp8; on Hopper
                  up to 16 rows of int4 and NF4, K divided among the blocks of a cluster
    mixed_input/  W4A16 and W8A16: any number of rows on Hopper, codes converted to 16 bits in registers; int4, NF4, int8 in groups
    tensor_core.py  W8A8: any number of rows on Hopper, with the kernels of flat/ and wgmma/
    group_gemv.py  W4A16 and W8A16: NF4, whose codes look up one of 16 numbers, and int8 in groups that share a scale
    sums.py       device functions shared by the GEMVs with scales per group
    many_rows.py  widens the whole matrix, then runs the GEMM of 16-bit weights

The formats' layouts, equations and decoders are those of kernels/quantization. A GEMV reads the codes once: half or a quarter of the bytes
of 16-bit weights. Speeds: docs/quantised-weights.md.
"""
