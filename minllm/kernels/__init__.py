"""The kernels, a folder a stage; each file holds the maths, the NumPy reference, the kernel and its launcher."""
