"""The sampler on a device: the simulator's cases, real vocabularies, and its own draws in statistics."""

import numpy as np
import pytest

from minllm.kernels.sampling.argmax import NOT_FINITE, NOTHING_ALLOWED
from minllm.kernels.sampling.penalties import penalize, penalize_reference
from minllm.kernels.sampling.philox import philox_reference
from minllm.kernels.sampling.thresholds import thresholds_reference, write_thresholds
from minllm.runtime.kernel import launch
from tests.kernels.sampling.cases import (
    LOGITS,
    PENALTIES,
    RULES,
    expected_tokens,
    kept_oracle,
    logits_of,
    parameters,
    run_sample,
    slots_of,
    tensors,
)  # fmt: skip
from tests.kernels.sampling.test_philox import philox_kernel

VOCABULARIES = [1, 3, 111, 4095, 4097, 32000, 128256]


def on_gpu(logits, sampling, device):
    return run_sample(logits, sampling, device.array, device.host)


def test_philox_is_that_of_the_reference(device):
    random = np.random.default_rng(0)
    counter, key = (random.integers(0, 2**32, (256, n), dtype=np.uint64).astype(np.uint32) for n in (4, 2))
    out = device.array(np.zeros_like(counter))
    launch(philox_kernel, 1, 256, (device.array(counter), device.array(key), out))
    np.testing.assert_array_equal(device.host(out), philox_reference(counter, key))


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_thresholds_keep_what_sorting_keeps(vocab, kind, device):
    logits, sampling = logits_of(kind, len(RULES), vocab), tensors(RULES, vocab)
    out = device.array(np.full(len(RULES), np.nan, np.float32))
    write_thresholds(device.array(logits), sampling.to(device.array), device.array(slots_of(logits)), out)
    kept = (logits >= device.host(out)[:, None]) & (logits > -np.inf)
    reference = (logits >= thresholds_reference(logits, sampling, slots_of(logits))[:, None]) & (logits > -np.inf)
    for row, rule in enumerate(parameters(**rule) for rule in RULES):
        if rule.temperature > 0 and logits[row].max() > -np.inf:
            expected, doubtful = kept_oracle(logits[row], rule)
            np.testing.assert_array_equal(kept[row] | doubtful, expected | doubtful, err_msg=str(rule))
    assert (kept != reference).mean() < 1e-3  # an exponential's last bit may move a borderline token


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_tokens_are_those_of_the_reference(vocab, kind, device):
    logits, sampling = logits_of(kind, len(RULES), vocab), tensors(RULES, vocab)
    np.testing.assert_array_equal(on_gpu(logits, sampling, device), expected_tokens(logits, sampling))


@pytest.mark.parametrize("rule", [dict(), dict(temperature=0.0), dict(top_k=3, top_p=0.5), dict(min_p=0.1), dict(repetition_penalty=2.0)])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_rows_without_a_choice_give_no_token(vocab, rule, device):
    logits = logits_of("normal", 5, vocab)
    logits[0], logits[1], logits[2, vocab // 2], logits[3, -1] = -np.inf, np.nan, np.nan, np.inf
    tokens = on_gpu(logits, tensors([rule] * 5, vocab), device)
    np.testing.assert_array_equal(tokens[:4], [NOTHING_ALLOWED, NOT_FINITE, NOT_FINITE, NOT_FINITE])
    np.testing.assert_array_equal(tokens, expected_tokens(logits, tensors([rule] * 5, vocab)))


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_greedy_rows(rows, device):
    logits = logits_of("normal", rows, 128256)
    tokens = on_gpu(logits, tensors([dict(temperature=0.0)] * rows, 128256), device)
    np.testing.assert_array_equal(tokens, np.argmax(logits, axis=1))


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("vocab", [3, 111, 32000])
def test_penalties(vocab, step, device):
    logits, sampling = logits_of("normal", len(PENALTIES), vocab), tensors(PENALTIES, vocab, step)
    out = device.array(np.full_like(logits, np.nan))
    penalize(device.array(logits), sampling.to(device.array), device.array(slots_of(logits)), out)
    np.testing.assert_allclose(device.host(out), penalize_reference(logits, sampling, slots_of(logits)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(on_gpu(logits, sampling, device), expected_tokens(logits, sampling))


def test_frequencies_of_a_million_draws(device):
    """Every row is one draw from the same logits, at its own step."""
    rows, vocab, rule = 4096, 111, dict(top_k=60, top_p=0.9)
    logits = logits_of("normal", 1, vocab, seed=3)[0] / 2
    kept, _ = kept_oracle(logits, parameters(**rule))
    observed = np.zeros(vocab, np.int64)
    repeated = np.repeat(logits[None], rows, 0)
    for batch in range(250):
        sampling = tensors([rule], vocab, step=0)
        wide = type(sampling)(**{name: np.repeat(array, rows, 0) for name, array in sampling.arrays().items()})
        wide.step[:] = batch * rows + np.arange(rows)
        observed += np.bincount(on_gpu(repeated, wide, device), minlength=vocab)
    expected = np.where(kept, np.exp((logits - logits.max()).astype(np.float64) / 0.8), 0)
    expected *= observed.sum() / expected.sum()
    assert not observed[~kept].any()
    freedom = kept.sum() - 1
    chi_squared = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_squared < freedom + 4 * np.sqrt(2 * freedom) + 6
