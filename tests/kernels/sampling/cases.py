"""Rows of logits and parameters that the sampler's tests share, and an oracle of the thresholds that sorts, in float64."""

import numpy as np

from minllm.catalogue.sampling import parameters
from minllm.kernels.sampling import SamplingTensors, build_sampling_tensors
from minllm.kernels.sampling.sample import SampleScratch, sample, sample_reference

RULES = [
    dict(temperature=0.0),
    dict(),
    dict(temperature=2.5),
    dict(top_k=1),
    dict(top_k=7, seed=2**63 + 5),
    dict(top_p=0.8),
    dict(top_p=0.05, temperature=3.0),
    dict(min_p=0.2),
    dict(top_k=20, top_p=0.7, min_p=0.05, seed=8),
    dict(top_k=110, top_p=0.999, temperature=1.7),
]
SIMULATED_RULES = [RULES[i] for i in (0, 1, 2, 8)]  # the simulator takes half a second over a restricted row
PENALTIES = [
    dict(),
    dict(repetition_penalty=1.3, temperature=0.0),
    dict(presence_penalty=0.7, frequency_penalty=-0.4, min_tokens=3),
    dict(repetition_penalty=0.6, frequency_penalty=1.9, min_tokens=1, temperature=0.0),
    dict(logit_bias={0: 2.5, 2: -100.0}, repetition_penalty=1.2),
    dict(allowed_token_ids=(0, 1), logit_bias={1: 0.5}),
]


def tensors(rules, vocab: int, step: int = 1) -> SamplingTensors:
    """One row per entry of `rules`, each with a short prompt and `step` generated tokens, some of them repeated."""
    prompts = [[row % vocab, 2 % vocab, 0] for row in range(len(rules))]
    outputs = [[(3 * i * i + row) % vocab for i in range(step)] for row in range(len(rules))]
    stops = [[row % vocab, vocab - 1][: 1 + row % 2] for row in range(len(rules))]
    return build_sampling_tensors([parameters(**rule) for rule in rules], vocab, prompts, outputs, stops)


def logits_of(kind: str, rows: int, vocab: int, seed: int = 0) -> np.ndarray:
    """float32 [rows, vocab] of one of the shapes in LOGITS."""
    return LOGITS[kind](np.random.default_rng([seed, rows, vocab]), (rows, vocab)).astype(np.float32)


def _masked(random, shape):
    x = random.normal(0, 3, shape)
    x[random.random(shape) < 0.7] = -np.inf
    return x


LOGITS = {
    "normal": lambda random, shape: random.normal(0, 3, shape),
    "peaked": lambda random, shape: random.normal(0, 30, shape),
    "huge": lambda random, shape: random.normal(0, 1e37, shape),
    "tiny": lambda random, shape: random.normal(0, 1e-39, shape),
    "ties": lambda random, shape: random.integers(-3, 4, shape) * 0.5,
    "equal": lambda random, shape: np.full(shape, -4.25),
    "zeros": lambda random, shape: np.where(random.random(shape) < 0.5, 0.0, -0.0),
    "masked": _masked,
    "fully_masked": lambda random, shape: np.full(shape, -np.inf),
}


def slots_of(logits: np.ndarray) -> np.ndarray:
    """Row r works for slot r: int32 [R]."""
    return np.arange(len(logits), dtype=np.int32)


def expected_tokens(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """The reference's tokens."""
    return sample_reference(logits, sampling, slots_of(logits))


def run_sample(logits: np.ndarray, sampling: SamplingTensors, to_device=np.array, to_host=np.asarray, slots=None) -> np.ndarray:
    """The kernels' tokens: in the simulator, or on the device that to_device copies to. Scratch and result are poisoned first."""

    def poisoned(shape, dtype):
        return to_device(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -77, dtype))

    rows, vocab = logits.shape
    out = poisoned((rows,), np.int32)
    scratch = SampleScratch.allocate(poisoned, rows, vocab, sampling.kind)
    slots = to_device(slots_of(logits) if slots is None else slots)
    sample(to_device(logits), sampling.to(to_device), slots, out, scratch)
    return to_host(out)


def kept_oracle(x: np.ndarray, rule) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens a row may draw, bool [vocab], by sorting in float64; and which of these answers rounding could turn.

    Min-p and top-k by the whole distribution, then top-p among the tokens that are left, renormalised.
    """
    x = x.astype(np.float64)
    kept = x > -np.inf
    ratio = np.exp(np.where(kept, x - x.max(), -np.inf) / rule.temperature)
    kept &= ratio >= rule.min_p
    doubtful = np.abs(ratio - rule.min_p) < 1e-5 * rule.min_p
    if doubtful.any() and rule.top_p < 1:
        doubtful[:] = True  # one token more or less moves the edge of top-p
    if 0 < rule.top_k < len(x):
        kept &= x >= np.sort(x)[-rule.top_k]
    probability = np.where(kept, np.exp(np.where(kept, x - x.max(), 0) / rule.temperature), 0)
    probability /= probability.sum()
    if rule.top_p < 1:
        values, inverse = np.unique(-x, return_inverse=True)  # descending logits
        mass = np.bincount(inverse, probability, len(values))
        above = (np.cumsum(mass) - mass)[inverse]
        kept &= above < rule.top_p
        doubtful |= np.abs(above - rule.top_p) < 1e-6
        doubtful |= ratio < 2.0**-30  # below the weights' unit
    return kept, doubtful
