"""Flash-Decoding on CUDA cores: the context split over blocks, and a merge."""
