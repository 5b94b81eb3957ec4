"""The launches of the sampler: R rows of V logits."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue.launch import MICROSECONDS, WIDE, Launch, MachineCode, Measured, Moved, beside, describes, each
from minllm.kernels.sampling import SamplingTensors, build_sampling_tensors, sample_reference
from minllm.kernels.sampling.argmax import parts_of
from minllm.kernels.sampling.log_probabilities import THREADS, LogProbabilities, LogProbabilitiesScratch, log_probabilities_reference
from minllm.kernels.sampling.log_probabilities import log_probabilities as launch_log_probabilities
from minllm.kernels.sampling.mask import mask_logits as launch_mask_logits
from minllm.kernels.sampling.parameters import kind_of
from minllm.kernels.sampling.sample import SampleScratch
from minllm.kernels.sampling.sample import sample as launch_sample

DEFAULTS = dict(temperature=0.8, top_k=-1, top_p=1.0, min_p=0.0, min_tokens=0, seed=1)
DEFAULTS |= dict(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=None, allowed_token_ids=None)
RULES = {
    "greedy": dict(temperature=0.0),
    "temperature": dict(),
    "top_k": dict(top_k=50),
    "top_p": dict(top_p=0.9),
    "top_k, top_p and min_p": dict(top_k=50, top_p=0.9, min_p=0.05),
    "penalties": dict(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
}
EVERY_RULE = dict(top_k=20, top_p=0.7, min_p=0.05, repetition_penalty=1.3, presence_penalty=0.1, min_tokens=3, logit_bias={1: 0.5})
SHARES = "the share p of an int64 sum of weights is formed in float64, once a level and thread"
OF_SLOTS = ("temperature", "top_k", "top_p", "min_p", "seed", "step", "min_tokens", "adjustments")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def parameters(**changes):
    """Sampling parameters with some attributes changed from DEFAULTS."""
    return SimpleNamespace(**(DEFAULTS | changes))


@describes
def sample(rows, vocabulary, rule, seen=16):
    """A token for every row by one of RULES, or by all of them ("every"); each row has a seed of its own and a prompt of `seen` tokens."""
    rules = RULES.get(rule, EVERY_RULE)
    kind = kind_of(parameters(**rules))
    parts = 4 * rows * parts_of(vocabulary)

    def arrays(noise):
        prompts = noise.random.integers(0, vocabulary, (rows, seen)).tolist()
        of_rows, stops = [parameters(**rules | dict(seed=row)) for row in range(rows)], [[vocabulary - 1]] * rows
        sampling = build_sampling_tensors(of_rows, vocabulary, prompts, stop_token_ids=stops)
        slots, logits = np.arange(rows, dtype=np.int32), noise.array((rows, vocabulary), np.float32, 3.0)
        return dict(logits=logits, slots=slots, out=noise.unwritten((rows,), np.int32), **sampling.arrays())

    def call(ops, logits, slots, out, **sampling):
        scratch = SampleScratch.allocate(ops.empty, rows, vocabulary, kind)
        launch_sample(logits, SamplingTensors(**sampling, kind=kind), slots, out, scratch, ops.stream)

    read, each_part = 4 * rows * vocabulary, dict(part_values=parts, part_tokens=parts)
    wide = dict.fromkeys(("logits", "output_counts", "logit_bias", "out"), read)
    return Launch(
        arrays,
        call,
        reference=lambda logits, slots, out, **sampling: dict(out=sample_reference(logits, SamplingTensors(**sampling, kind=kind), slots)),
        moved=dict(
            argmax_parts_kernel=Moved(dict(logits=read) | each_part),
            argmax_of_parts_kernel=Moved(each_part | dict(out=4 * rows)),
            penalize_kernel=Moved(wide | dict(token_flags=read // 2), dict(token_flags=read // 4)),  # read by penalties and by bans
            thresholds_kernel=Moved(dict(logits=read * (1 + 3 + 3), out=4 * rows), dict(logits=read)),
            draw_parts_kernel=Moved(dict(logits=read) | each_part),
        ),
        indices=("slots", "thresholds", *OF_SLOTS, *PENALTIES),
        rows=("logits", "slots", "out"),
        exact=True,
    )


@describes
def mask_logits(rows, vocabulary, masked=1):
    """Logits of which the first `masked` rows have a mask, in reverse order; every other token is allowed on average."""
    words = -(-vocabulary // 32)

    def arrays(noise):
        indices = np.where(np.arange(rows) < masked, masked - 1 - np.arange(rows), -1).astype(np.int32)
        bits = noise.random.integers(-(2**31), 2**31, (masked, words)).astype(np.int32)
        logits = noise.array((rows, vocabulary), np.float32, 3.0)
        return dict(logits=logits, indices=indices, masks=bits, out=noise.unwritten((rows, vocabulary), np.float32))

    read = 4 * rows * vocabulary
    return Launch(
        arrays,
        **beside(launch_mask_logits, "out"),
        moved=Moved(dict(logits=read, masks=4 * masked * vocabulary, out=read), dict(masks=4 * masked * words)),
        indices=("indices",),
        rows=("logits", "indices", "out"),
        exact=True,
    )


@describes
def log_probabilities(rows, vocabulary, top):
    """Log-probability and rank of the chosen token, and the `top` most probable tokens."""
    parts, most = parts_of(vocabulary), 4 * rows * top

    def arrays(noise):
        empty = LogProbabilities.allocate(noise.unwritten, rows, top)._asdict()
        tokens, logits = noise.random.integers(0, vocabulary, rows).astype(np.int32), noise.array((rows, vocabulary), np.float32, 3.0)
        return dict(logits=logits, token_ids=tokens, **empty)

    def call(ops, logits, token_ids, **out):
        scratch = LogProbabilitiesScratch.allocate(ops.empty, rows, vocabulary, top)
        launch_log_probabilities(logits, token_ids, LogProbabilities(**out), scratch, ops.stream)

    def reference(logits, token_ids, **out):
        found = log_probabilities_reference(logits, token_ids, top)._asdict()
        return dict(top_token_ids=found.pop("top_token_ids"), **found)

    best = dict(part_values=most * parts, part_tokens=most * parts)
    return Launch(
        arrays,
        call,
        reference,
        moved=dict(  # every thread of the first one reads the chosen token's logit
            log_probability_parts_kernel=Moved(
                dict(logits=4 * rows * (vocabulary + THREADS * parts)) | best, dict(logits=4 * rows * vocabulary)
            ),
            log_probabilities_of_parts_kernel=Moved(best | dict(logits=4 * rows, top_token_ids=most, top_values=most)),
        ),
        indices=("token_ids", "chosen", "rank", "part_peaks", "part_sums", "part_ranks"),
        rows=("logits", "token_ids", "chosen", "rank", "top_token_ids", "top"),
        slack=2e-6,
        elementwise=True,
    )


def compiled():
    """Logits are always float32. The memory-bound kernels should have 6 blocks of 256 threads per SM."""
    every, greedy, probable = sample(1, 68, "every"), sample(1, 68, "greedy"), log_probabilities(1, 68, 3)

    def kernel(name, launch, blocks, contains=(), float64=""):
        return MachineCode(f"sampling/{name}", launch, blocks, contains, float64, kernel_name=f"{name}_kernel")

    yield kernel("penalize", every, 6)
    yield kernel("mask_logits", mask_logits(1, 68), 6)
    yield kernel("argmax_parts", greedy, 5, WIDE[:1])
    yield kernel("argmax_of_parts", greedy, 16)
    yield kernel("thresholds", every, 1, WIDE[:1], SHARES)
    yield kernel("draw_parts", every, 5, WIDE[:1])
    yield kernel("log_probability_parts", probable, 4, WIDE[:1])
    yield kernel("log_probabilities_of_parts", probable, 4)


def small():
    """Every rule; beside these, tests/kernels/sampling has rows of awkward logits, of several rules, and without a choice."""
    yield from each(sample, [(2, 68, "greedy"), (1, 67, "every"), *((1, 67, rule) for rule in RULES)])
    yield from each(log_probabilities, [(2, 68, 3)])
    yield from each(mask_logits, [(3, 67, 2), (2, 320, 1)])


def large():
    """Vocabularies of models."""
    yield from each(sample, [(5, vocabulary, rule) for vocabulary in (4097, 128256) for rule in RULES])
    yield from each(mask_logits, [(5, vocabulary, 3) for vocabulary in (4097, 128256, 262144)])
    yield from each(log_probabilities, [(5, 4097, 0), (5, 128256, 20), (5, 262144, 20)])


def measured():
    """Every rule and the log-probabilities, in microseconds, for 1 row and for 64. The limit is the time to read the logits once, from HBM;
    in a decode step those of a single row would still be in the L2 cache."""
    for rows in (1, 64):
        size = dict(case=f"{rows}x128256, float32", unit=MICROSECONDS, work=rows * 128256 * 4, set_bytes=rows * 128256 * 4, sample=4)
        for rule in RULES:
            yield Measured(sample(rows, 128256, rule), rule, **size)
        yield Measured(log_probabilities(rows, 128256, 20), "log_probabilities", **size, tolerance=0.0, for_tuning=True)
