"""From logits to tokens, in microseconds: the cost of each rule per decode step over a vocabulary of 128,256.

The limit is the time of reading the logits once. The logits come from HBM, as if computed long ago; in a decode step
those of a single row would still be in L2.
"""

import numpy as np

from minllm.bench.kernel_case import FLOAT32, MICROSECONDS, KernelCase, Prepared
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling import build_sampling_tensors, sample_reference
from minllm.kernels.sampling.advance import advance, advance_reference
from minllm.kernels.sampling.sample import SampleScratch, sample

VOCABULARY = 128256
SAMPLE_ROWS = 4  # rows that are sampled again on the host
RULES = {
    "greedy": dict(temperature=0.0),
    "temperature": dict(temperature=0.8),
    "top_k": dict(temperature=0.8, top_k=50),
    "top_p": dict(temperature=0.8, top_p=0.9),
    "top_k, top_p and min_p": dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "penalties": dict(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
}


def mismatches(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of rows with a token other than the reference's."""
    return float((found != expected).mean())


def sampling_case(rule: str, rows: int, vocabulary: int = VOCABULARY) -> KernelCase:
    """All rows follow one rule of RULES, each with its own seed."""
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


def advance_case(rows: int = 64) -> KernelCase:
    """The step between two decode steps, a few bytes per row: its time is that of a launch."""

    def prepare(ops, noise, sets):
        # Each of thousands of launches advances the rows. An endless block keeps them inside their tables.
        endless = 2**30
        tables, limits = np.zeros((rows, 1), np.int32), np.full(rows, endless, np.int32)
        tokens = noise.random.integers(0, VOCABULARY, rows).astype(np.int32)
        state = [noise.random.integers(0, 1000, rows).astype(np.int32) for _ in range(4)]
        sampling = build_sampling_tensors([SamplingParams(temperature=0.0, seed=0)] * rows, VOCABULARY)
        on_device, device_sampling = [ops.array(array) for array in state], sampling.to(ops.array)
        arguments = [ops.array(tokens), *on_device, ops.array(tables), ops.array(limits), device_sampling]
        advance_reference(tokens, *state, tables, limits, sampling, endless)
        return Prepared(
            [lambda: advance(*arguments, endless, ops.stream)],
            [],
            result=lambda: np.stack([ops.to_host(array) for array in on_device]),
            error=lambda found: mismatches(found, np.stack(state)),
        )

    set_bytes = 2**40  # one set, whatever the cache: there is almost nothing to read
    return KernelCase(
        "sampling",
        "sampling",
        f"{rows} rows",
        variant="advance",
        dtype=FLOAT32,
        unit=MICROSECONDS,
        work=0,
        set_bytes=set_bytes,
        prepare=prepare,
        tolerance=0.0,
    )


def cases() -> list[KernelCase]:
    """Every rule for one row and for many."""
    return [*(sampling_case(rule, rows) for rows in (1, 64) for rule in RULES), advance_case()]
