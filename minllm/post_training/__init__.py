"""Post-training quantisation, layer by layer on the CPU: `minllm quantize IN OUT --format`.

    quantize.py     quantises a checkpoint; the implementation of the command
    calibration.py  the inputs of every linear layer for a calibration text
    migration.py    SmoothQuant and AWQ: scales that move between a matrix and what precedes it
    grids.py        the codes of int8, fp8, int4 and NF4, and scales that clip a group
    rounding.py     round to nearest, and GPTQ's rounding, in which later inputs compensate for the errors of earlier ones
    files.py        writes the checkpoint in the layout of compressed-tensors or bitsandbytes
"""  # fmt: skip

UNCALIBRATED = ("round", "clip")  # the methods that read no calibration text
