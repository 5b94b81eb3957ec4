"""Flash-Decoding on tensor cores: work division, rings of tiles, merge."""
