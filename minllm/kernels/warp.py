"""Constants of a warp: 32 lanes (threads) that exchange registers by shuffles and votes."""

ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle or vote in which all lanes of the warp take part
