"""The vocabulary of fast kernels: tiles in shared memory and in registers."""
