"""Matrices of a checkpoint encoded on the GPU while it loads, bit for bit as the formats' NumPy equations do (kernels/quantization).

    int4    groups of 32, 64 or 128 inputs with a scale, and perhaps a zero point
    nf4     blocks of 64 inputs with their largest magnitude

int8 and fp8 need nothing here: a row of a matrix is encoded as a row of activations is (matmul/quantized/rows.py).
"""
