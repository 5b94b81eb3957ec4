"""Weights as values: a Linear knows its arrays, bias, format and shard, and travels with them from the checkpoint to the kernel.

    linear.py    Linear: y = x @ weight.T + bias, the weight in the arrays of its format
    format.py    WeightFormat: the interface of a format; LinearKernels: how a GPU multiplies by its weights
    plain.py     float32, float16, bfloat16
    int8.py      8 bits with a scale per output channel, times activations that are quantised too
    fp8.py       the same with 8-bit floats
    fp8_block.py  fp8 with a scale for each block of 128 x 128
    int8_groups.py  8 bits in groups that share a scale, times activations in 16 bits
    int4.py      4 bits in groups that share a scale, with or without zero points
    nf4.py       4-bit codes for normally distributed numbers, with scales that are quantised too
    pieces.py    a matrix quantised a piece at a time
    quantized_kernels.py  how a GPU multiplies by them
    formats.py   the table: one line a format
    shard.py     Shard: the part of a Linear that one of several GPUs holds
    stored.py    the linear layers of a checkpoint: names and shapes, and how a tensor is cut for a shard
"""
