"""What every kernel says of its warps: 32 threads, the warp's lanes, that exchange registers by shuffles and votes."""

WARP = 32  # threads
ALL_LANES = 0xFFFFFFFF  # the mask of a shuffle or a vote that all lanes of the warp take part in
