"""Attention kernels over a paged KV cache: one ladder, from materialised scores to split-KV decoding."""
