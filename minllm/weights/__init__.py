"""Linear layers: a Linear carries its arrays, bias, format and shard from the checkpoint to the kernel.

    linear.py    Linear: y = x @ weight.T + bias, the weight in the arrays of its format
    format.py    WeightFormat: the interface of a format; LinearKernels: its GPU kernels
    plain.py     float32, float16, bfloat16
    int8.py      W8A8 in int8: a scale per output channel, activations quantised per token
    fp8.py       the same in fp8 (e4m3)
    fp8_block.py  fp8 with a scale per block of 128 x 128
    int8_groups.py  W8A16: 8 bits in groups that share a scale
    int4.py      W4A16: 4 bits in groups that share a scale, with or without zero points
    nf4.py       4-bit codes for normally distributed numbers, with scales that are quantised too
    pieces.py    quantising a matrix some rows at a time
    plain_kernels.py, quantized_kernels.py  the GPU kernels of the formats, and which is used for how many rows of x
    formats.py   the table of formats, one line per format
    shard.py     Shard: the part of a Linear that one of several GPUs holds
    stored.py    the linear layers of a checkpoint: names and shapes, and how a tensor is cut for a shard
"""  # fmt: skip
