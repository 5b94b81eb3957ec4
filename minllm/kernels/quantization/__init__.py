"""Formats of quantised weights and KV caches: layouts, the equations from float32 to codes and back, and device functions that decode.

    decoder.py          the interface by which GEMVs and GEMMs decode weights; then a file per format, with its Format:
    int8.py, fp8.py     W8A8: a scale per row
    fp8_block.py        the codes of fp8.py, a scale per 128 x 128
    int8_groups.py      W8A16: a scale per group of inputs
    int4.py             W4A16: a scale per group, and perhaps a zero point or a minimum
    nf4.py              W4A16: a table of 16 numbers, quantised scales per block of 64
    formats.py          formats of caches; reference.py: their equations; cache.py: the arrays; cache_decoder.py: the device functions
    groups.py           how many numbers share a scale
    lanes.py            device functions that quantise
"""  # fmt: skip
