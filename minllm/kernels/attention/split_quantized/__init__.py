"""Flash-Decoding over quantised caches: the codes themselves are multiplied on tensor cores."""
