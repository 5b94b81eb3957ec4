"""Appending to the cache, alone and fused with split, norm and RoPE: references and simulated kernels, and callers' mistakes."""

import numpy as np
import pytest

from minllm.catalogue import kv
from minllm.errors import KernelArgumentError, SimulationError
from minllm.kernels.kv import qkv_rope_append_vector
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.kv.qkv_rope_append_vector import MANY_TOKENS, THREADS, share_heads
from tests.kernels.launches import check


def is_by_vectors(launch):
    """Whether qkv_rope_append_vector.py serves a launch: of plain caches, or of 8-bit floats."""
    shape = launch.shape
    if launch.name == "qkv_rope_append_quantized":
        return shape["name"].startswith("fp8") and not shape["recent"] and launch.dtype.itemsize == 2
    return launch.name == "qkv_rope_append" and not shape["interleaved"] and launch.dtype != np.float16


WHOLE_HEADS = [launch for launch in kv.small() if launch.shape.get("head_dim") in (64, 128, 256) and is_by_vectors(launch)]


@pytest.mark.detected("launch.dtype")
@pytest.mark.parametrize("launch", WHOLE_HEADS, ids=str)
def test_two_heads_a_thread_as_for_many_tokens(launch, device, monkeypatch):
    monkeypatch.setattr(qkv_rope_append_vector, "MANY_TOKENS", 1)
    check(launch, device)


@pytest.mark.parametrize(
    "tokens, all_heads, vectors, expected",
    [
        (1, 48, 8, (2, 24, 1)),
        (MANY_TOKENS, 48, 8, (1, 24, 2)),
        (MANY_TOKENS, 49, 8, (2, 16, 2)),
        (MANY_TOKENS, 48, 4, (1, 24, 2)),
        (1, 8, 4, (1, 8, 1)),
        (1, 3, 16, (1, 4, 1)),
        (MANY_TOKENS, 70, 3, (1, 40, 2)),
        (1, 7, 192, (7, 1, 1)),
    ],
)
def test_heads_are_shared_among_whole_warps(tokens, all_heads, vectors, expected):
    assert share_heads(tokens, all_heads, vectors) == expected
    blocks, side_by_side, heads_per_thread = expected
    assert blocks * side_by_side * heads_per_thread >= all_heads and side_by_side * vectors <= THREADS


@pytest.mark.parametrize("head_dim", [7, 8])
def test_the_simulator_finds_a_slot_outside_the_cache(head_dim):
    key, cache = np.zeros((1, 1, head_dim), np.float32), np.zeros((2, 4, 1, head_dim), np.float32)
    with pytest.raises(SimulationError, match="out of bounds"):
        append(key, key, cache, cache.copy(), np.array([8], np.int32))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


APPEND_ARGUMENTS = dict(
    key=zeros(2, 3, 4), value=zeros(2, 3, 4), slot_mapping=zeros(2, dtype=np.int32),
    key_cache=zeros(5, 2, 3, 4), value_cache=zeros(5, 2, 3, 4),
)  # fmt: skip
APPEND_MISTAKES = {
    "values of another shape": (dict(value=zeros(2, 3, 5)), r"value is float32 \[2, 3, 5\]; its shape must be .*head_dim=4\]"),
    "a cache of other heads": (dict(key_cache=zeros(5, 2, 4, 4)), r"key_cache is float32 \[5, 2, 4, 4\]"),
    "caches that differ": (dict(value_cache=zeros(4, 2, 3, 4)), r"value_cache .* must be \[num_blocks=5"),
    "a cache of another dtype": (dict(key_cache=zeros(5, 2, 3, 4, dtype=np.float16)), "key_cache is float16"),
    "slots of 64 bits": (dict(slot_mapping=zeros(2, dtype=np.int64)), "slot_mapping is int64"),
    "a cache with strides": (dict(key_cache=zeros(5, 2, 3, 8)[..., ::2]), "key_cache .* the 48 bytes of a token must lie side by side"),
}
QKV_ARGUMENTS = dict(
    qkv=zeros(2, 40), positions=zeros(2, dtype=np.int32), slot_mapping=zeros(2, dtype=np.int32),
    key_cache=zeros(5, 2, 3, 4), value_cache=zeros(5, 2, 3, 4), query=zeros(2, 4, 4),
)  # fmt: skip
QKV_MISTAKES = {
    "columns": (dict(qkv=zeros(2, 41)), r"qkv is float32 \[2, 41\]; its shape must be \[tokens=2, columns=40\]"),
    "one norm": (dict(q_norm=zeros(4)), "q_norm and k_norm come together"),
    "a norm of another length": (dict(q_norm=zeros(4), k_norm=zeros(5)), r"k_norm is float32 \[5\]"),
    "a table too wide": (dict(cos_sin=zeros(9, 6)), "turns 6 components of a head of 4"),
    "caches of other heads": (dict(key_cache=zeros(5, 2, 3, 5)), r"key_cache is float32 \[5, 2, 3, 5\]"),
    "a position too few": (dict(positions=zeros(1, dtype=np.int32)), "positions is int32"),
}


@pytest.mark.parametrize("change, message", APPEND_MISTAKES.values(), ids=APPEND_MISTAKES)
def test_mistakes_of_append_are_explained(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        append(**APPEND_ARGUMENTS | change)


@pytest.mark.parametrize("change, message", QKV_MISTAKES.values(), ids=QKV_MISTAKES)
def test_mistakes_of_the_fused_step_are_explained(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        qkv_rope_append(**QKV_ARGUMENTS | change)
