"""Mixed-input GEMM on Hopper: rows of 16 bits by a weight of 4 or 8, which becomes 16 bits in registers, as wgmma's left operand.

    tiling.py          how the product is divided among blocks, warpgroups and steps
    kernel.py          the kernel: a producer that loads by TMA, consumers that decode one step while the tensor cores multiply another
    k_groups.py        warpgroups of a block that divide K: their stages, and the sum of their sums
    decoder.py         what a consumer has to know of a format
    int4_decoder.py    nibbles with scales and zero points or minimums
    nf4_decoder.py     nibbles that look up a table, with absmax in 8 bits
    int8_decoder.py    bytes with scales
    gemm.py            the launchers: int4_gemm, nf4_gemm, int8_group_gemm, and the same with gate and up
"""
