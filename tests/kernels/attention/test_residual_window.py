"""Codes and recent keys together, simulated, against float64 attention over what each row must see."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue.attention.windows import CHUNKS, FETCHED, STEPS, residual_window
from minllm.catalogue.kv.quantized import quantized_caches
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.residual_window import residual_window as launcher
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.launches import check


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of few warps and small tiles: quick to simulate, and short contexts cross their edges."""
    monkeypatch.setattr(split_quantized, "shape_of", lambda _, form, __: SplitShape(2, 32 if form.keys_by_channel else 16, 2, 1, turns=2))
    monkeypatch.setattr(decode_step, "shape_of", lambda *_: SplitShape(1, 16, 2, 1))
    for module in (flash_attention_2, flash_attention_2_quantized):
        monkeypatch.setattr(module, "tiles_for", lambda *_: (16, 16, 1))


@pytest.mark.detected("sliding_window", "dtype")
@pytest.mark.parametrize(
    ("launch", "sliding_window", "dtype"),
    [(one, one.shape["sliding_window"], str(one.dtype)) for one in (residual_window(*sizes) for sizes in (*STEPS, *CHUNKS))],
    ids=str,
)
def test_steps_and_chunks(device, launch, sliding_window, dtype):
    check(launch, device)


@pytest.mark.parametrize("shape", [SplitShape(2, 32, 2, 1, tensor_copies=True, turns=2), SplitShape(1, 32, 3, 1, turns=2)], ids=str)
def test_tiles_that_tma_fetches(device, monkeypatch, shape):
    monkeypatch.setattr(split_quantized, "shape_of", lambda *_: shape)
    check(residual_window(*FETCHED), device)


def arguments_of(sizes):
    """The arguments of a launch, by name."""
    launch, found = residual_window(*sizes), kv_format(sizes[2], sizes[6])
    arrays = launch.arrays(Noise(length=SHORT))
    codes = {name: arrays.pop(name) for name in ("key_codes", "key_scales", "value_codes", "value_scales")}
    return arrays | dict(zip(("key_cache", "value_cache"), quantized_caches(found, codes, found.keys_by_channel), strict=True))


def test_what_it_does_not_take():
    given = arguments_of(STEPS[1])

    def refused(match, window=32, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            launcher.attention(**(given | changes), scale=0.1, residual_window=window, max_query_len=1)

    refused("a positive multiple of 32", window=0)
    refused("a multiple of 32", window=33)
    refused("not float32", query=given["query"].astype(np.float32))
    refused("key_cache is not quantised", key_cache=given["recent_key"])
    refused(r"must have \(False, False\)", key_cache=replace(given["key_cache"], by_channel=True))
    refused("one dtype", recent_key=given["recent_key"].astype(np.float32))
    refused("recent_lens|context_lens", recent_lens=given["recent_lens"][:2])


def test_keys_by_channel_need_a_window():
    given = {name: array for name, array in arguments_of(STEPS[2]).items() if not name.startswith("recent")}
    with pytest.raises(KernelArgumentError, match="kivi_int4 keeps its newest keys as they are"):
        flash_attention_2_quantized.attention(**given, scale=0.1)
