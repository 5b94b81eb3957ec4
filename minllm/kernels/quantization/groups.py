"""How many numbers share a scale: cached ones, and those of weights."""

INT4_GROUP = 32  # components of a head
TOKEN_GROUP = 32  # tokens quantised together if keys are by channel; residual windows are multiples of it
NF4_BLOCK, NESTED_BLOCK = 64, 256  # inputs per absmax of NF4, and absmax per nested scale
FP8_BLOCK = 128  # outputs and inputs per scale of fp8_block
