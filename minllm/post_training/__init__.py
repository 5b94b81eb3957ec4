"""Post-training quantisation: `minllm quantize IN OUT --format` makes a checkpoint that loads again, layer by layer on the CPU.

    quantize.py     a checkpoint quantised: the command's work
    calibration.py  what a calibration text feeds into every linear layer
    migration.py    SmoothQuant and AWQ: scales that move between a matrix and what comes before it
    grids.py        the codes of int8, fp8, int4 and NF4, and scales that clip a group
    rounding.py     round to nearest, and GPTQ's rounding, in which later inputs make up for the errors of earlier ones
    files.py        the checkpoint in compressed-tensors' layout, or bitsandbytes'
"""
