"""Planning: what a model needs and can reach on a GPU, before anything is loaded.

    formats.py     the number formats of weights and cache: bytes a number, and which of a GPU's rates multiplies them
    presets.py     shapes of well-known models, and the reader of any other's config.json
    plan.py        memory, largest batch, floors, tokens a second, cost; all from minllm.costs and minllm.machine.hardware
    measured.py    the same floors held against recorded measurements
    card.py        both as text
"""
