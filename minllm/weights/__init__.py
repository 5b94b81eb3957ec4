"""Linear layers: a Linear carries its arrays, bias, format and shard from the checkpoint to the kernel.

    linear.py    Linear: y = x @ weight.T + bias, the weight in the arrays of its format
    format.py    WeightFormat: the interface of a format; LinearKernels: its GPU kernels
    plain.py     float32, float16, bfloat16
    quantized.py the quantised formats: their sizes, and the equations (kernels/quantization) and kernels that belong to them
    pieces.py    quantising a matrix some rows at a time
    plain_kernels.py, quantized_kernels.py  the GPU kernels of the formats, and which is used for how many rows of x
    formats.py   the table of formats, one line per format
    shard.py     Shard: the part of a Linear that one of several GPUs holds
    stored.py    the linear layers of a checkpoint: names and shapes, and how a tensor is cut for a shard
"""  # fmt: skip
