"""Flash-Decoding on CUDA cores: the context is split over blocks, and a second kernel merges their states."""
