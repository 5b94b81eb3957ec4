"""Device, streams, memory, graphs and the kernel launcher: a thin layer over cuda.core and Numba's compiler."""
