"""The one place where an engine is put together, and what its parts are made by.

    plan.py            device, operations, formats and sizes, before anything is allocated
    engine.py          model, memory, runner and scheduler, in this order

    ops.py, weights.py, compute_dtype.py, cache_format.py, step_limits.py, memory_budget.py, max_model_len.py    decisions and checks
    cache.py, calibration.py, preemption.py, speculation.py, precompile.py    makers of the parts
"""  # fmt: skip
