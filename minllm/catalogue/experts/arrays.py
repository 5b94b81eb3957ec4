"""What launches of experts have in common: choices of experts, weights in a format, and the sizes of a model."""

import numpy as np

from minllm.catalogue.matmul.quantized import FORMATS, weight_of
from minllm.catalogue.rows import FLOAT32
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.reference import route_reference

A3B = dict(experts=128, chosen=8, hidden=2048, inner=768)  # Qwen3-30B-A3B
EPSILON = 1e-5
CODED = ("int4/128", "fp8")  # formats of quantised experts


def choices(noise, tokens, experts, chosen):
    """Different experts for each token, int32 [T, k]; half of the experts are chosen more often."""
    order = noise.random.random((tokens, experts))
    order[:, ::2] *= 0.5
    return order.argsort(axis=1)[:, :chosen].astype(np.int32)


def sorted_pairs(noise, tokens, experts, chosen):
    """(pairs, offsets) of such choices."""
    return sort_by_expert_reference(choices(noise, tokens, experts, chosen), experts)


def stacked(noise, rows, k, dtype, form):
    """A weight of `rows` rows of k numbers: an array of `dtype`, or in a format."""
    if form:
        return weight_of(noise, form, rows, k)
    return noise.array((rows, k), dtype, k**-0.5)


def numbers_of(weight, form):
    """A weight as floats."""
    return FORMATS[form].dequantize(weight) if form else weight


def bytes_of_code(form, dtype):
    """Bytes per number of weight, without scales."""
    return FORMATS[form].matrix_itemsize if form else dtype.itemsize


def experts_of(offsets):
    """The expert of each sorted pair."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def router_logits(noise, tokens, experts, special=False):
    """Logits [T, E]; special: with equal ones, NaN and infinities."""
    logits = noise.array((tokens, experts), FLOAT32)
    if special:
        logits[0], logits[-1, ::2] = np.round(logits[0]), np.nan
        logits[tokens // 2, :2] = -np.inf
    return logits


def touched_by(logits, chosen):
    """The number of different experts that tokens choose."""
    return len(np.unique(route_reference(logits, chosen, True)[0]))


def labels(form):
    """(end of a variant's name, name in a case) of a format of weights; as those of MachineCode."""
    return (f"_{form.partition('/')[0]}", form.replace("/", " in groups of ")) if form else ("", "bfloat16")
