"""Mixed-input GEMM on Hopper: 16-bit rows of x times a weight of 4 or 8 bits.

    tiling.py          how the GEMM is divided among blocks, warpgroups and steps
    kernel.py          the kernel: a producer that loads by TMA, consumers that decode one step while the tensor cores multiply another
    k_groups.py        warpgroups of a block that divide K: their stages, and how their sums are added
    scales.py          scales and zero points, which TMA loads beside the codes
    decoder.py         a consumer's interface to a weight format
    int4_decoder.py    four-bit codes with scales and zero points or minimums
    nf4_decoder.py     four-bit codes that look up a table, with absmax in 8 bits
    int8_decoder.py    int8 codes with scales
    gemm.py            the launchers: int4_gemm, nf4_gemm, int8_group_gemm, and the same with gate and up

The weight becomes 16 bits in registers, as wgmma's left operand.
"""
