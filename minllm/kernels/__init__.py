"""The kernels, one folder per stage; each file holds the maths, the NumPy reference, the kernel and its launcher."""
