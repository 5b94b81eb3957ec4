"""The bytes that each kernel of the package moves, and its operations, counted by the simulator, against its docstring's formulas."""

import pytest

from minllm.costs import decode_step, prefill
from minllm.models.decoder import forward
from minllm.ops.cuda_ops import CudaOps
from minllm.sim import detecting, tracing
from tests.models.batches import PagedSequences
from tests.ops.small_models import small_model
from tests.sim.every_kernel import ROUNDED, ROWS, kernels_of_the_package

pytestmark = pytest.mark.results_only
ENGINE = "lanes"  # whose traces are those of the threads (tests/sim/lanes/test_every_kernel.py)


@pytest.mark.parametrize("name", ROWS, ids=str)
def test_counted_bytes_are_those_of_the_formula(name):
    expected = ROWS[name]
    with tracing() as traces, detecting(False):
        expected.run()
    by_kernel = {}
    for counts in traces:
        by_kernel.setdefault(counts.kernel, counts)
    for kernel, formulas in expected.kernels.items():
        counts = by_kernel[kernel]
        moved = {array: traffic.total for array, traffic in counts.arrays.items() if traffic.total.requests}
        moved = {array: total for array, total in moved.items() if array not in expected.indices}
        assert {array: total.bytes for array, total in moved.items()} == formulas.asked
        assert {array: total.unique_bytes for array, total in moved.items()} == formulas.asked | formulas.different
        assert counts.tensor_core_flops == formulas.tensor_core_flops
        assert formulas.operations in (None, counts.total_flops)


def test_every_kernel_of_the_package_has_a_row():
    rows = {kernel for entry in ROWS.values() for kernel in entry.kernels}
    assert kernels_of_the_package() == rows and rows >= set(ROUNDED)


# What costs.py counts: weights, the rows of the embedding, keys and values.
WEIGHTS = ("weight", "norm", "bias", "q_norm", "k_norm", "embedding", "position_embedding")
CACHES = ("key_cache", "value_cache")


def traced_forwards(family, prompts):
    """(config, the traces of the prompts' forward, those of a decode step behind it) of a small model."""
    ops = CudaOps("bfloat16", simulated=True)
    model = small_model(family, ops)
    sequences = PagedSequences(ops, model.config, [8] * len(prompts), block_size=4)
    found = []
    for chunk in (prompts, [[3 + row] for row in range(len(prompts))]):
        batch = sequences.append(chunk, last_row_only=True)
        with tracing() as traces, detecting(False):
            forward(ops, model, batch, sequences.cache)
        found.append(traces)
    return model.config, *found


def different_bytes(traces):
    """Of weights, keys and values, summed over launches; a lookup beyond the first picks rows of activations."""
    lookups = [counts for counts in traces if "embedding" in counts.kernel]
    counted = [counts for counts in traces if counts not in lookups[1:]]
    return sum(array.total.unique_bytes for counts in counted for name, array in counts.arrays.items() if name in WEIGHTS + CACHES)


# A batch reads its weights once and each sequence its own keys.
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.covering("family", "batch")
@pytest.mark.parametrize("family, batch", [("llama", 2), ("llama", 1), ("qwen3", 1), ("gpt2", 1)])
def test_a_prompt_and_a_decode_step_move_what_costs_says(family, batch):
    prompts = [[5, 1, 7]] if batch == 1 else [[5, 1], [7, 2]]
    config, prompt_traces, step_traces = traced_forwards(family, prompts)
    assert batch > 1 or different_bytes(prompt_traces) == prefill(config, 3).bytes
    assert different_bytes(step_traces) == decode_step(config, batch=batch, context=len(prompts[0]) + 1).bytes
