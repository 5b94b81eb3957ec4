"""Sampling, in microseconds: the cost of each rule per decode step for a vocabulary of 128,256.

The limit is the time to read the logits once. Here the logits are read from HBM; in a decode step those of a single row would still be in
the L2 cache.
"""

import numpy as np

from minllm.bench.kernel_case import FLOAT32, MICROSECONDS, KernelCase, Prepared
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.kernels.sampling import build_sampling_tensors, sample_reference
from minllm.kernels.sampling.log_probabilities import (
    LogProbabilities,
    LogProbabilitiesScratch,
    log_probabilities,
    log_probabilities_reference,
)  # fmt: skip
from minllm.kernels.sampling.sample import SampleScratch, sample

VOCABULARY = 128256
SAMPLE_ROWS = 4  # number of rows that are also sampled on the host
RULES = {
    "greedy": dict(temperature=0.0),
    "temperature": dict(temperature=0.8),
    "top_k": dict(temperature=0.8, top_k=50),
    "top_p": dict(temperature=0.8, top_p=0.9),
    "top_k, top_p and min_p": dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "penalties": dict(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
}


def mismatches(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of elements that differ from the reference, 0 to 1."""
    return float((found != expected).mean())


def sampling_case(rule: str, rows: int, vocabulary: int = VOCABULARY) -> KernelCase:
    """Sampling all rows by one rule of RULES, each row with its own seed."""
    params = [SamplingParams(seed=row, **RULES[rule]) for row in range(rows)]
    logits_bytes = rows * vocabulary * FLOAT32.itemsize

    def prepare(ops, noise, sets):
        prompts = noise.random.integers(0, vocabulary, (rows, 16)).tolist()
        few = min(rows, SAMPLE_ROWS)
        logits = [noise.array((rows, vocabulary), FLOAT32, deviation=3.0) for _ in range(sets)]
        on_device, out = [ops.array(array) for array in logits], ops.empty((rows,), np.int32)
        device_slots = ops.array(np.arange(rows, dtype=np.int32))
        tensors = build_sampling_tensors(params, vocabulary, prompts).to(ops.array)
        slots = np.arange(rows, dtype=np.int32)
        expected = sample_reference(logits[0][:few], build_sampling_tensors(params[:few], vocabulary, prompts[:few]), slots[:few])
        scratch = SampleScratch.allocate(ops.empty, rows, vocabulary, tensors.kind)
        return Prepared(
            [lambda array=array: sample(array, tensors, device_slots, out, scratch, ops.stream) for array in on_device],
            [],
            result=lambda: ops.to_host(out),
            error=lambda tokens: mismatches(tokens[:few], expected),
        )

    case = f"{rows}x{vocabulary}, float32"
    return KernelCase(
        "sampling",
        "sampling",
        case,
        variant=rule,
        dtype=FLOAT32,
        unit=MICROSECONDS,
        work=logits_bytes,
        set_bytes=logits_bytes,
        prepare=prepare,
        tolerance=0.0,
    )


def log_probabilities_case(rows: int, vocabulary: int = VOCABULARY, top: int = 20) -> KernelCase:
    """Log-probability and rank of the chosen token, and the `top` most probable tokens, as many as a request may ask for."""

    def prepare(ops, noise, sets):
        few = min(rows, SAMPLE_ROWS)
        logits = [noise.array((rows, vocabulary), FLOAT32, deviation=3.0) for _ in range(sets)]
        tokens = noise.random.integers(0, vocabulary, rows).astype(np.int32)
        on_device, device_tokens = [ops.array(array) for array in logits], ops.array(tokens)
        out = LogProbabilities.allocate(ops.empty, rows, top)
        scratch = LogProbabilitiesScratch.allocate(ops.empty, rows, vocabulary, top)
        expected = log_probabilities_reference(logits[0][:few], tokens[:few], top)
        return Prepared(
            [lambda array=array: log_probabilities(array, device_tokens, out, scratch, ops.stream) for array in on_device],
            [],
            result=lambda: np.concatenate([ops.to_host(out.rank)[:, None], ops.to_host(out.top_token_ids)], axis=1),
            error=lambda found: mismatches(found[:few], np.concatenate([expected.rank[:, None], expected.top_token_ids], axis=1)),
        )

    logits_bytes = rows * vocabulary * FLOAT32.itemsize
    return KernelCase(
        "sampling",
        "sampling",
        f"{rows}x{vocabulary}, float32",
        variant="log_probabilities",
        dtype=FLOAT32,
        unit=MICROSECONDS,
        work=logits_bytes,
        set_bytes=logits_bytes,
        prepare=prepare,
        tolerance=0.0,
    )


def cases() -> list[KernelCase]:
    """Every rule and the log-probabilities, for 1 row and for 64."""
    sizes = (1, 64)
    return [*(sampling_case(rule, rows) for rows in sizes for rule in RULES), *map(log_probabilities_case, sizes)]
