"""Masks of structured outputs: every token's bit, against Python's integers. The catalogue's launches compare the kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.mask import mask_logits, mask_logits_reference


@given(st.integers(1, 70), st.integers(1, 4), st.data())
def test_a_token_stays_exactly_if_its_bit_is_set(vocab, rows, data):
    bits = data.draw(st.lists(st.integers(0, 2**vocab - 1), min_size=1, max_size=3))
    indices = data.draw(st.lists(st.integers(-1, len(bits) - 1), min_size=rows, max_size=rows))
    words = -(-vocab // 32)
    masks = np.array([[number >> 32 * word & 0xFFFFFFFF for word in range(words)] for number in bits], np.uint32).view(np.int32)
    logits = np.arange(rows * vocab, dtype=np.float32).reshape(rows, vocab) - 30
    found = mask_logits_reference(logits, np.array(indices, np.int32), masks)
    for row, index in enumerate(indices):
        for token in range(vocab):
            allowed = index < 0 or bits[index] >> token & 1
            assert found[row, token] == (logits[row, token] if allowed else -np.inf)


def test_logits_may_be_masked_in_place(device):
    logits = device.array(np.ones((2, 33), np.float32))
    mask_logits(logits, device.array(np.array([-1, 0], np.int32)), device.array(np.array([[-(2**31), 1]], np.int32)), logits)
    assert np.flatnonzero(np.isfinite(device.host(logits)[1])).tolist() == [31, 32] and np.isfinite(device.host(logits)[0]).all()


@pytest.mark.parametrize("shape,dtype", [((1, 1), np.int32), ((1, 3), np.int32), ((1, 2), np.int64), ((2,), np.int32)])
def test_masks_of_another_shape_are_refused(shape, dtype):
    logits = np.zeros((1, 33), np.float32)
    with pytest.raises(KernelArgumentError, match="masks"):
        mask_logits(logits, np.zeros(1, np.int32), np.zeros(shape, dtype), logits.copy())
