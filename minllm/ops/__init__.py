"""The operations of a forward pass: one protocol, implemented with NumPy and with CUDA kernels."""
