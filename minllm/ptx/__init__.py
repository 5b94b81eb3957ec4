"""The PTX instructions that Numba has no name for, one function each, with its emulation beside it."""
