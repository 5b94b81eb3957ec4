"""The virtual policy: contiguous addresses, and pages mapped as needed."""
