"""Planning: a model's memory use and its limits of speed on a GPU, computed without loading it.

    formats.py       names of the formats of weights and cache, bytes per cached number, and the FLOP/s of each weight format
    plan.py          memory, largest batch, floors, tokens per second, cost; all from minllm.costs and minllm.machine.hardware
    predicted.py     the predicted times of decode step and prefill, for Hopper GPUs
    caches.py        compares all policies and formats of the KV cache
    weight_table.py  predicted decode steps with weights in several formats, by batch
    measured.py      compares the floors with recorded measurements
    card.py          plans and comparisons as text and JSON
"""  # fmt: skip
