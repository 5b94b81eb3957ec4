"""Flash-Decoding with CUDA cores: the context split over blocks, and a merge."""
