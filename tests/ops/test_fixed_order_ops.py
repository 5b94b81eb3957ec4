"""batch_invariant: the logits of a token are the same bits in chunks of any size, as a decode step, and beside any other sequences."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.engine.options import FIXED_ORDER_VARIANTS
from minllm.models.decoder import forward
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_fixed_order import FixedOrderNumpyOps
from tests.models.batches import PagedSequences
from tests.ops.small_models import CONFIGS, small_model

TEXT = np.random.default_rng(0).integers(0, 37, 40).tolist()  # the sequence that is compared
OPS = {
    "numpy": FixedOrderNumpyOps,
    "kernels": functools.partial(CudaOps, kernel_variants=FIXED_ORDER_VARIANTS, simulated=True),
}


def logits(machine, family, dtype, schedule, others, text=TEXT, block_size=4):
    """The logits of each token of `text`, [tokens, vocab], computed in steps of these numbers of tokens.

    others: for each step, the numbers of tokens of other sequences, which are computed before and behind it.
    """
    ops = OPS[machine](dtype)
    model = small_model(family, ops)
    count = max(map(len, others), default=0)
    lengths = [len(text)] + [sum(step[i] for step in others if i < len(step)) or 1 for i in range(count)]
    sequences, found, start = PagedSequences(ops, model.config, lengths, block_size), [], 0
    for length, company in zip(schedule, others, strict=True):
        company = list(company) + [0] * (count - len(company))
        chunks = [[(7 * i + sequences.lengths[i + 1] + j) % 37 for j in range(n)] for i, n in enumerate(company)]
        batch = sequences.append([text[start : start + length], *chunks])
        found.append(ops.to_host(forward(ops, model, batch, sequences.cache))[:length])
        start += length
    return np.concatenate(found)


@functools.cache
def alone(machine, family, dtype, length):
    """The logits of the first tokens of the text, token by token and alone."""
    return logits(machine, family, dtype, [1] * length, [()] * length, TEXT[:length])


@st.composite
def schedules(draw, length):
    """(the numbers of tokens of each step, those of the other sequences in each step)."""
    steps, left = [], length
    while left:
        steps.append(draw(st.integers(1, left)))
        left -= steps[-1]
    count = draw(st.integers(0, 3))
    return steps, [draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)) for _ in steps]


@settings(max_examples=25, deadline=None)
@given(schedule=schedules(40), family=st.sampled_from(sorted(CONFIGS)), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_numpy_in_any_company(schedule, family, dtype):
    np.testing.assert_array_equal(logits("numpy", family, dtype, *schedule), alone("numpy", family, dtype, 40))


@pytest.mark.results_only
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("family, dtype", [("llama", "bfloat16"), ("gpt2", "bfloat16"), ("qwen3", "float16"), ("qwen3_moe", "bfloat16")])
def test_kernels_in_company(family, dtype):
    """A chunk of 6 beside one of 5 and a decode step, a decode step beside a chunk and one alone, then rows as of a verification."""
    found = logits("kernels", family, dtype, [6, 1, 1, 3], [(5, 1), (7, 1), (), (1, 3)], TEXT[:11])
    np.testing.assert_array_equal(found, logits("kernels", family, dtype, [11], [()], TEXT[:11]))
