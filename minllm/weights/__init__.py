"""Weights as values: a Linear knows its arrays, bias, format and shard, and travels with them from the checkpoint to the kernel.

    linear.py    Linear: y = x @ weight.T + bias, the weight in the arrays of its format
    format.py    WeightFormat: the interface of a format; LinearKernels: how a GPU multiplies by its weights
    plain.py     float32, float16, bfloat16
    planned.py   formats that `minllm plan` counts, without kernels yet
    formats.py   the table: one line a format
    shard.py     Shard: the part of a Linear that one of several GPUs holds
    stored.py    the linear layers of a checkpoint: names and shapes, and how a tensor is cut for a shard
"""
