"""The SIMT simulator: runs kernels on the CPU, one greenlet a CUDA thread."""
