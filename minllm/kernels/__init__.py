"""The kernels, one folder per stage. Each file has the maths, the NumPy reference, the kernel and its launcher.

A stage's folder holds what an engine launches. ladder/ below it holds the rungs that lead there, which only lessons, exercises, minllm.nano
and benchmarks launch, or an engine that is given their name (kernel_variants).
"""
