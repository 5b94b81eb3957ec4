"""Philox against the known answers that its authors publish with Random123, and the noise against the Gumbel distribution."""

import numpy as np
import pytest
from numba import cuda, uint32

from minllm.kernels.sampling.philox import gumbel, gumbel_reference, philox_4x32, philox_reference
from minllm.runtime.kernel import kernel, launch

# kat_vectors of Random123, "philox4x32 10": counter, key, answer
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@kernel
def philox_kernel(counter, key, out):
    """counter uint32 [n, 4], key uint32 [n, 2], out uint32 [n, 4]."""
    i = cuda.threadIdx.x
    words = philox_4x32(counter[i, 0], counter[i, 1], counter[i, 2], counter[i, 3], key[i, 0], key[i, 1])
    out[i, 0], out[i, 1], out[i, 2], out[i, 3] = words


@kernel
def gumbel_kernel(words, out):
    """words uint32 [n], out float32 [n]."""
    i = cuda.threadIdx.x
    out[i] = gumbel(uint32(words[i]))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_reference_gives_the_known_answers(counter, key, answer):
    assert tuple(philox_reference(np.array(counter, np.uint32), np.array(key, np.uint32))) == answer


def test_kernel_gives_the_known_answers():
    counter, key, answer = (np.array(column, np.uint32) for column in zip(*KNOWN_ANSWERS, strict=True))
    out = np.zeros_like(answer)
    launch(philox_kernel, 1, len(out), (counter, key, out))
    np.testing.assert_array_equal(out, answer)


def test_noise_of_the_kernel_is_finite_and_that_of_the_reference():
    token_ids = np.arange(64)
    words = philox_reference(np.stack([token_ids // 4, token_ids * 0 + 9, token_ids * 0, token_ids * 0], -1), np.array([5, 6], np.uint32))
    words = words[token_ids, token_ids % 4]
    out = np.zeros(64, np.float32)
    launch(gumbel_kernel, 1, 64, (words, out))
    np.testing.assert_allclose(out, gumbel_reference(np.array([5, 6], np.uint32), 9, token_ids), rtol=1e-5, atol=1e-6)
    extremes = np.array([0, 1, 2**32 - 1, 2**32 - 2, 2**31], np.uint32)
    launch(gumbel_kernel, 1, 5, (extremes, out))
    assert np.isfinite(out[:5]).all() and out[0] > 22 and out[2] < -2


def test_noise_follows_the_gumbel_distribution():
    noise = np.sort(gumbel_reference(np.array([1, 2], np.uint32), 3, np.arange(200_000)).astype(np.float64))
    distribution = np.exp(-np.exp(-noise))
    distance = np.abs(distribution - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.95 / np.sqrt(len(noise))  # Kolmogorov-Smirnov at 0.1 %


def test_noise_of_a_token_does_not_depend_on_the_others():
    seed = np.array([7, 0], np.uint32)
    everything = gumbel_reference(seed, 4, np.arange(1001))
    some = np.array([0, 3, 5, 500, 1000])
    np.testing.assert_array_equal(gumbel_reference(seed, 4, some), everything[some])
    assert len(np.unique(everything)) > 995
    assert not np.array_equal(everything, gumbel_reference(seed, 5, np.arange(1001)))
    assert not np.array_equal(everything, gumbel_reference(np.array([7, 1], np.uint32), 4, np.arange(1001)))
