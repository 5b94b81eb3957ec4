"""Flash-Decoding on tensor cores: plan, rings of tiles, merge."""
