"""Checkpoints whose matrices are stored quantised, read into the formats of weights/ without a 16-bit copy.

    stored_format.py       config.json's quantization_config -> the format of every module; errors name the settings that are not supported
    compressed_tensors.py  W4A16, W8A8 in int8 and fp8, fp8 in blocks
    awq.py                 4 bits with zero points, eight outputs per word
    gptq.py                4 bits, eight inputs per word; the version of the zero points is detected from the codes
    fp8_blocks.py          Hugging Face's fp8
    bitsandbytes.py        NF4 and FP4
    gguf_groups.py         GGUF's Q8_0, Q4_0 and Q4_1
    tensors.py             the tensors of one module, with errors that name them
    words.py               codes packed in words of 32 bits
    modules.py             a format per module
    widened.py             a module in a layout without kernels, dequantised while it loads
"""  # fmt: skip
