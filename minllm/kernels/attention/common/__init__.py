"""Shared by all attention kernels: argument checks, paged cache, online softmax, visible keys, merging of states."""
