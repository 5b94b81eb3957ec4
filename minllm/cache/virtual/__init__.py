"""The virtual policy: contiguous addresses for every sequence, and memory pages that are mapped as it grows."""
