"""Execution of a Step: the model on the arrays of a batch, kernel by kernel or as the replay of a CUDA graph."""
