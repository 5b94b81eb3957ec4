"""The benchmark of a whole step, on paper: it times what the engine launches, finds the layers, and counts the bytes of each part."""

from dataclasses import replace

import numpy as np
import pytest

from minllm import costs
from minllm.bench import launch, step
from minllm.bench.kernel_case import rounded
from minllm.bench.step import StepBench
from minllm.engine.options import FIXED_ORDER_VARIANTS
from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.formats import kv_format
from minllm.models.shapes import SHAPES, named_config
from minllm.models.weights import load_weights
from minllm.ops.dry_run_ops import DryRunOps
from minllm.runtime.dry_run import dry_run
from minllm.weights.formats import WEIGHT_FORMATS
from tests.bench.paper_machine import CountingClock, PaperMachine
from tests.runtime.h200 import H200

SHAPE, CONTEXT, COPY_TB_S = "llama-3.2-1b", 640, 4.0


@pytest.fixture(scope="module", autouse=True)
def few_layers():
    """The shape with five of its sixteen layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES[SHAPE], "num_hidden_layers", 5)
        yield


@pytest.fixture(scope="module", params=[1, 2, 16])
def rows(request, few_layers):
    """(batch, the rows of a step and its parts)"""
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        ops = DryRunOps("bfloat16", {"matmul": "gemv" if request.param <= 8 else "flat"})
        ceilings = {"copy_tb_s": COPY_TB_S, "bf16_tflops": None}
        bench = StepBench(SHAPE, ops, CountingClock(launches), request.param, CONTEXT + 64, ceilings, PaperMachine())
        yield request.param, bench.decode_rows(CONTEXT, parts=True)


def parts_of(rows):
    """The rows of single kernels."""
    return [row for row in rows if row.benchmark == "decode step parts"]


def paper_weights(ops, config, checkpoint, **options):
    """The weights' shapes, without drawing a number."""
    checkpoint.tensor = lambda name: np.broadcast_to(np.float32(0), checkpoint.entry(name).shape)
    return load_weights(ops, config, checkpoint, **options)


def test_the_step_is_held_against_its_bytes(rows):
    batch, (whole, *others) = rows
    in_order = [row for row in others if row.variant == "graph replay, kernels in order"]
    layers, kernels = named_config(SHAPE).num_hidden_layers, {1: 5, 2: 8, 16: 5}[batch]
    before = {1: 2, 2: 2, 16: 3}[batch]  # load_rows and the embedding; for sixteen sequences the first norm too
    behind = {1: 4, 2: 5, 16: 5}[batch]  # head, two of argmax, advance; for several sequences the final norm too
    assert len(in_order) == (batch == 1) and {row.value for row in in_order} <= {whole.value}
    assert whole.value == before + layers * kernels + behind  # µs, one for each launch
    assert whole.limit == pytest.approx(costs.decode_step(named_config(SHAPE), batch, CONTEXT).bytes / COPY_TB_S / 1e6, rel=1e-3)
    assert whole.of_limit == pytest.approx(whole.limit / whole.value, rel=1e-3)


def test_every_part_adds_what_it_takes_and_the_bytes_are_the_steps(rows):
    _, (whole, *others) = rows
    parts = parts_of(others)
    assert all(row.value == 1 for row in parts)
    added = [row for row in parts if row.case.endswith("added")]
    assert len(parts) == 2 * len(added) == len({(row.case, row.variant) for row in parts})
    layers = named_config(SHAPE).num_hidden_layers
    total = sum((layers if ", layer," in row.case else 1) * (row.limit or 0) for row in added)
    assert total == pytest.approx(whole.limit, rel=2e-3)  # norms, and the row that the embedding reads, are not in the parts
    assert [row.variant for row in added[:2]] == ["load_rows_kernel", "embedding_vector_kernel"] and added[-1].variant == "advance_kernel"


@pytest.mark.parametrize(("batch", "last"), [(1, ["gate_up_gemv", "down_gemv"]), (16, ["grouped_gemm", "grouped_gemm", "combine"])])
def test_the_parts_of_a_step_with_experts(batch, last):
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        patch.setitem(SHAPES["qwen3-30b-a3b"], "num_hidden_layers", 5)
        ceilings = {"copy_tb_s": COPY_TB_S, "bf16_tflops": None}
        bench = StepBench("qwen3-30b-a3b", DryRunOps("bfloat16"), CountingClock(launches), batch, CONTEXT + 64, ceilings, PaperMachine())
        whole, *others = bench.decode_rows(CONTEXT, parts=True)
    parts = parts_of(others)
    added = [row for row in parts if row.case.endswith("added")]
    of_layer = [row for row in added if ", layer," in row.case]
    assert [row.variant.removesuffix("_kernel") for row in of_layer][-len(last) :] == last
    total = sum((5 if row in of_layer else 1) * row.limit for row in added if row.limit)
    assert total == pytest.approx(whole.limit, rel=2e-3)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch", [1, 2, 16])
def test_a_step_of_few_layers_is_divided_too(batch, layers):
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        patch.setitem(SHAPES[SHAPE], "num_hidden_layers", layers)
        ops = DryRunOps("bfloat16", {"matmul": "gemv" if batch <= 8 else "flat"})
        bench = StepBench(SHAPE, ops, CountingClock(launches), batch, CONTEXT + 64, {"copy_tb_s": COPY_TB_S}, PaperMachine())
        whole, *others = bench.decode_rows(CONTEXT, parts=True)
    parts = parts_of(others)
    added = [row for row in parts if row.case.endswith("added")]
    assert sum((layers if ", layer," in row.case else 1) * row.limit for row in added if row.limit) == pytest.approx(whole.limit, rel=2e-3)
    of_layer = [row.variant for row in added if ", layer," in row.case]
    assert sum(name.startswith("matmul") for name in of_layer) == 4 and of_layer[-1].startswith("matmul")
    assert "embedding_vector_kernel" not in of_layer and sum(name.startswith("split") for name in of_layer) == 1


@pytest.mark.parametrize("prompt", [512, 700])
def test_a_prefill_is_timed_kernel_by_kernel_and_as_the_engines_step(prompt):
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        ceilings = {"copy_tb_s": COPY_TB_S, "bf16_tflops": 700.0}
        bench = StepBench(SHAPE, DryRunOps("bfloat16"), CountingClock(launches), 1, 700, ceilings, PaperMachine())
        by_kernel, replayed = bench.prefill_rows(prompt, None)
    assert by_kernel.case == replayed.case == f"{SHAPE} (random weights), {prompt} tokens"
    assert (by_kernel.variant, replayed.variant) == ("bfloat16", "bfloat16, graph replay")
    assert by_kernel.limit == replayed.limit == pytest.approx(costs.prefill(named_config(SHAPE), prompt).flops / 700.0 / 1e9, rel=1e-3)
    assert round(1e3 * (replayed.value - by_kernel.value)) == 3  # two launches of argmax, and advance


def test_the_kernels_of_batch_invariant_make_a_whole_step():
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        ops = DryRunOps("bfloat16", FIXED_ORDER_VARIANTS)
        bench = StepBench(SHAPE, ops, CountingClock(launches), 1, CONTEXT + 64, {"copy_tb_s": COPY_TB_S}, PaperMachine())
        whole, in_order = bench.decode_rows(CONTEXT, parts=False)
    assert whole.value == in_order.value >= 8 * named_config(SHAPE).num_hidden_layers  # norms are kernels of their own


@pytest.mark.parametrize("kv_cache_dtype", ["fp8_e4m3", "int8", "int4"])
def test_a_step_over_a_quantised_cache_reads_its_codes(kv_cache_dtype):
    with pytest.MonkeyPatch.context() as patch, dry_run(H200) as launches:
        patch.setattr("minllm.bench.random_model.load_weights", paper_weights)
        given = DryRunOps("bfloat16"), CountingClock(launches), 2, CONTEXT + 64, {"copy_tb_s": COPY_TB_S}, PaperMachine()
        bench = StepBench(SHAPE, *given, kv_cache_dtype=kv_cache_dtype)
        whole, *others = bench.decode_rows(CONTEXT, parts=True)
    config = named_config(SHAPE)
    item = kv_format(kv_cache_dtype, config.head_dim).bytes_per_head / config.head_dim
    assert item < 1.3 and whole.limit == rounded(costs.decode_step(config, 2, CONTEXT, kv_itemsize=item).bytes / COPY_TB_S / 1e6)
    assert whole.case.startswith(f"{SHAPE} (random weights, KV cache in {kv_cache_dtype}), batch 2")
    assert any("quantized" in row.variant for row in parts_of(others))


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(InvalidOptionError, match="llama-3.1-8b"):
        step.run(["llama-9"], [], [1024], 0, False, None, None)
    with pytest.raises(InvalidOptionError, match="torch"):
        step.run([], [], [1024], 0, False, "jax", None)
    with pytest.raises(InvalidOptionError, match="fp8_e5m2"):
        step.run([], [], [1024], 0, False, None, None, kv_cache_dtype="kivi_int4")


def test_host_time_counts_launches_and_not_the_wait_for_them():
    waits, calls = [], []

    class Stream:
        def sync(self):
            waits.append(len(calls))

    assert 0 < launch.host_seconds(lambda: calls.append(1), Stream()) < 1e-3
    assert waits == [launch.LAUNCHES * (i + 1) for i in range(launch.WARM_UP + launch.SERIES)]


def test_a_step_of_quantised_weights_is_held_against_its_own_bytes():
    """Layers share the codes of a few: the launches are those of all."""
    config = replace(
        named_config(SHAPE), num_hidden_layers=6, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=512,
    )  # fmt: skip
    with dry_run(H200) as launches:
        ops = DryRunOps("bfloat16")
        bench = StepBench(config, ops, CountingClock(launches), 1, CONTEXT + 64, {"copy_tb_s": 4.0}, PaperMachine(), WEIGHT_FORMATS["int8"])
        (whole,) = bench.decode_rows(CONTEXT, parts=False)
    assert "in int8" in whole.case and whole.value > 4 * config.num_hidden_layers
    layers = bench.model.model.weights.layers
    assert len(layers) == config.num_hidden_layers == 6 and layers[4] is layers[0] and layers[1] is not layers[0]
