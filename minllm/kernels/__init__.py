"""The kernels, one folder per stage; a file has the maths in its docstring, the NumPy reference, the kernel and its launcher."""
