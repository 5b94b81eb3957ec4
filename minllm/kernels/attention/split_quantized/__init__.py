"""Flash-Decoding over quantised caches: tensor cores multiply the codes."""
