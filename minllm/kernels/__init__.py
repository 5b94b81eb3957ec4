"""The kernels, one folder per stage. Each file has the maths, the NumPy reference, the kernel and its launcher."""
