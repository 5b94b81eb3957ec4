"""Planning: what a model needs and can reach on a GPU, before anything is loaded.

    formats.py     names of the formats of weights and cache, bytes per cached number, and the rate that multiplies weights
    plan.py        memory, largest batch, floors, tokens a second, cost; all from minllm.costs and minllm.machine.hardware
    caches.py      all policies and formats of the KV cache beside each other
    weight_table.py  predicted decode steps with weights in several formats, by batch
    measured.py    the same floors held against recorded measurements
    card.py        both as text
"""
