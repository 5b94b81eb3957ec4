"""Mixed-input GEMM on Hopper: 16-bit rows of x times a weight of 4 or 8 bits.

    tiling.py          how the GEMM is divided among blocks, warpgroups and steps
    kernel.py          the kernel: one tile per block for few rows, one tile after another for many
    grid.py            the tiles of out, and which of them a block computes
    mainloop.py        a producer that loads by TMA, consumers that decode one step while the tensor cores multiply another
    epilogue.py        outputs that leave by TMA while the next tile is multiplied
    k_groups.py        warpgroups of a block that divide K: their stages, and how their sums are added
    scales.py          scales and zero points, which TMA loads beside the codes
    decoder.py         a step of codes in shared memory becomes numbers (quantization/decoder.py)
    gemm.py            what the launchers of all formats do, plain and with gate and up

The weight becomes 16 bits in registers, as wgmma's left operand.
"""
