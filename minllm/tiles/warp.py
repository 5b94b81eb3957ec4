"""A warp, whose lanes (threads) exchange registers by shuffles and votes."""

WARP = 32  # lanes of a warp
ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle or vote in which all lanes of the warp take part
