"""The operations that a forward pass needs, as one protocol, on NumPy and on CUDA."""
