"""GEMM on Hopper: TMA, wgmma, warp specialisation."""
