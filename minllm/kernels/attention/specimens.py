"""The attention kernels as they are launched: the specimens of every room."""

import importlib

ROOMS = (
    "first_rungs", "flash_attention_2", "flash_attention_3", "split_kv", "split_tensor_core", "split_quantized", "residual_window",
)  # fmt: skip


def specimens():
    """All of them."""
    for room in ROOMS:
        yield from importlib.import_module(f"minllm.kernels.attention.{room}.specimens").specimens()
