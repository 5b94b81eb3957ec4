"""Numbers to codes and back, against float64 and PyTorch."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.reference import (
    dequantize_by_channel,
    dequantize_reference,
    pack_nibbles,
    quantize_by_channel,
    quantize_reference,
    unpack_nibbles,
)

INTEGERS = [("int8", 64, None), ("int8", 96, 32), ("int4", 128, None), ("int4", 64, 32), ("int4", 96, None)]
TORCH_FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def there_and_back(x, found, scales=None):
    return dequantize_reference(*quantize_reference(x, found, scales), found)


@pytest.mark.parametrize(("name", "head_dim", "group_size"), INTEGERS)
def test_the_error_is_half_a_step(name, head_dim, group_size):
    found, random = kv_format(name, head_dim, group_size), np.random.default_rng(0)
    x = (random.standard_normal((7, 3, head_dim)) * random.choice([1e-2, 1, 30], (7, 3, 1)) + 2).astype(np.float32)
    by_group = x.reshape(7, 3, found.groups, found.group_size).astype(np.float64)
    span = by_group.max(-1, keepdims=True) - by_group.min(-1, keepdims=True)
    # Half a step, the rounding of zero, and that of scale, which the last code has levels times.
    allowed = span / found.levels * 0.5 + np.abs(by_group.min(-1, keepdims=True)) * 2**-11 + span * 2**-11
    error = np.abs(there_and_back(x, found).reshape(by_group.shape) - by_group)
    assert (error <= allowed * (1 + 1e-3)).all()
    assert error.max() > span.min() / found.levels * 0.25  # it is quantised at all


@pytest.mark.parametrize(("name", "head_dim", "group_size"), INTEGERS)
def test_what_is_exact_stays_exact(name, head_dim, group_size):
    """Whole numbers from -8 on, every one of the format's levels: scale 1 and zero -8 hold them."""
    found = kv_format(name, head_dim, group_size)
    x = np.resize(np.arange(found.levels + 1, dtype=np.float32), (2, 1, found.groups, found.group_size)) - 8
    x[..., 0], x[..., 1] = -8, found.levels - 8
    np.testing.assert_array_equal(there_and_back(x.reshape(2, 1, head_dim), found).reshape(x.shape), x)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_numbers_all_alike_have_scale_zero(name):
    found = kv_format(name, 64)
    x = np.full((2, 1, 64), -3.5, ml_dtypes.bfloat16)
    codes, pairs = quantize_reference(x, found)
    assert not codes.any() and (pairs == [0, -3.5]).all()
    np.testing.assert_array_equal(dequantize_reference(codes, pairs, found), x.astype(np.float32))


@pytest.mark.parametrize("name", TORCH_FLOAT8)
def test_floats_are_pytorchs(name):
    found, scales = kv_format(name, 64), np.array([0.5, 3.0], np.float32)
    x = np.random.default_rng(1).standard_normal((5, 2, 64)).astype(np.float32) * np.float32(40)
    scaled = torch.from_numpy(x * (np.float32(1) / scales)[:, None])
    expected = scaled.to(TORCH_FLOAT8[name]).to(torch.float32).numpy() * scales[:, None]
    np.testing.assert_array_equal(there_and_back(x, found, scales), expected)


@pytest.mark.parametrize(("name", "largest"), [("fp8_e4m3", 448), ("fp8_e5m2", 57344)])
def test_floats_too_large_become_the_largest(name, largest):
    x = np.full((1, 1, 16), 1e6, np.float32)
    x[..., 1], x[..., 2] = -1e9, np.inf
    back = there_and_back(x, kv_format(name, 16), np.array([2.0], np.float32))
    np.testing.assert_array_equal(back[0, 0, :3], [2 * largest, -2 * largest, 2 * largest])


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.sampled_from([8, 24, 64])), elements=st.integers(0, 15)))
@settings(max_examples=30, deadline=None)
def test_nibbles_come_back(codes):
    packed = pack_nibbles(codes)
    np.testing.assert_array_equal(unpack_nibbles(packed), codes)
    words = packed.view("<u4")
    for i in range(4):  # a kernel unpacks them so: neighbours in the halves of a word
        halves = words >> np.uint32(4 * i) & np.uint32(0x000F000F)
        np.testing.assert_array_equal(halves & 0xFFFF, codes[:, 2 * i :: 8])
        np.testing.assert_array_equal(halves >> 16, codes[:, 2 * i + 1 :: 8])


def test_a_channel_of_its_own_size_spoils_no_other():
    """By channel, each error is half a step of its own channel; one channel is a thousand times as large as the others."""
    found = kv_format("kivi_int4", 64)
    x = np.random.default_rng(4).standard_normal((3, 2, found.token_group, 64)).astype(np.float32)
    x[..., 5] *= 1000
    codes, pairs = quantize_by_channel(x, found)
    assert codes.shape == (3, 2, 32, 32) and pairs.shape == (3, 2, 64, 2)
    back = dequantize_by_channel(codes, pairs[..., None, :, :])
    span = x.max(axis=-2) - x.min(axis=-2)  # [3, 2, 64]
    allowed = span / 15 * 0.5 + np.abs(x.min(axis=-2)) * 2**-11 + span * 2**-11
    assert (np.abs(back - x) <= allowed[..., None, :] * (1 + 1e-3)).all()
    assert np.abs(back - x)[..., 5].max() > 10 and np.abs(back - x)[..., :5].max() < 0.5
