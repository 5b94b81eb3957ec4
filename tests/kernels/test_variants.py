"""The tables of variants: what they say is true, and one line in one of them is all that a new variant takes."""

import importlib
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from minllm import catalogue
from minllm.engine.options import FIXED_ORDER_VARIANTS
from minllm.errors import KernelArgumentError
from minllm.kernels import all_reduce, attention, matmul
from minllm.kernels.all_reduce import choice as messages
from minllm.kernels.attention.choice import choose, choose_quantized
from minllm.kernels.attention.variants import QUANTIZED
from minllm.kernels.matmul import choice as products
from minllm.kernels.quantization.formats import KV_FORMATS, kv_format
from minllm.kernels.variants import Variant, Variants
from tests.kernels.attention.cases import AttentionCase, make_arrays

ROOT = Path(__file__).parents[2]
BFLOAT16, HOPPER = ml_dtypes.bfloat16, (9, 0)
TOY = Variant("toy", "tests.kernels.toy_attention")
TABLES = [attention.VARIANTS, matmul.VARIANTS]
REGISTERED = [(table, name) for table in TABLES for name in table]


@pytest.fixture
def toy(monkeypatch):
    """The toy in attention's table, until the test ends."""
    monkeypatch.setitem(attention.VARIANTS.entries, TOY.name, TOY)
    catalogue.machine_code.cache_clear()
    yield TOY.name
    catalogue.machine_code.cache_clear()


@pytest.mark.parametrize(("table", "name"), REGISTERED, ids=[f"{table.stage}-{name}" for table, name in REGISTERED])
def test_every_variant_has_its_launcher_and_is_compiled(table, name):
    launcher = table[name]
    if table is attention.VARIANTS:
        assert callable(launcher.attention) and callable(launcher.workspace_shapes)
        assert any(one.startswith(f"attention/{name}/") for one in catalogue.machine_code())
    else:
        assert callable(launcher)
    fallback = table.entry(name).fallback
    assert not fallback or table.entry(fallback).reads == table.entry(name).reads


def launched_by_engines():
    """{stage: the names of the variants that engines choose}, and those that serve arguments of which there is one kind each."""
    rows, dtypes = range(1, 600), ("float32", "bfloat16")
    shapes = itertools.product(rows, ((6144, 4096), (7, 5)), dtypes, (None, "NVIDIA H200"), (False, True))
    caches = [SimpleNamespace(format=kv_format(name, 64), shape=(1, size)) for name in KV_FORMATS for size in (5, 16)]
    gpus = [(dtype, capability) for dtype in dtypes for capability in (None, (8, 0), HOPPER)]
    plain = {choose(number, *gpu) for number in rows for gpu in gpus}
    return {
        "matmul": {products.choose(m, n, k, dtype, gpu, hopper) for m, (n, k), dtype, gpu, hopper in shapes},
        "attention": plain | {choose_quantized(number, cache, *gpu) for number in (1, 2) for cache in caches for gpu in gpus}
        | {"split_cluster", "flash_attention_2_float32", "residual_window", "tree", "soft_capped"},
        "all_reduce": {messages.choose(ranks, 1 << power) for ranks in range(2, 9) for power in range(30)} - {None}
        | {"fused_norm", "gemv_low_latency", "sequence_parallel"},
    }  # fmt: skip


@pytest.mark.parametrize("table", [*TABLES, all_reduce.VARIANTS], ids=lambda table: table.stage)
def test_a_ladder_holds_the_variants_that_no_engine_launches(table):
    launched = launched_by_engines()[table.stage] | set(FIXED_ORDER_VARIANTS.values()) & set(table)
    launched |= {table.entry(name).fallback for name in launched} - {""}
    assert {name for name in table if not table.entry(name).module.startswith(".ladder.")} == launched


def test_a_kernel_that_is_listed_twice_is_compiled_for_all_targets():
    """Small shared memories and large ones, or few heads and many, may get the same shape of block."""
    every = catalogue.machine_code()
    for table in TABLES:
        listed = list(catalogue.stage(table.stage).compiled())
        assert len(listed) > 50 and all(one.name.startswith(f"{table.stage}/") for one in listed)
        assert all(set(one.targets) <= set(every[one.name].targets) for one in listed)
    assert (10, 0) in every["attention/split_tensor_core/256/group_8/1x4x2/bfloat16"].targets


def test_reasons_are_sentences():
    why_not = attention.VARIANTS.why_not
    assert why_not("split_kv", 1, "float32") is None and why_not("split_kv", 2, "float32") == "split_kv takes up to 1 rows, not 2"
    assert why_not("split_tensor_core", 1, "float32") == "split_tensor_core takes float16, bfloat16, not float32"
    assert why_not("flash_attention_3", 9, "float16", (8, 0)) == "flash_attention_3 needs a GPU of compute capability 9.0"
    assert why_not("split_quantized", 1, "float16") == "split_quantized takes quantized caches, not arrays"
    assert why_not("split_quantized", 1, "float16", reads=QUANTIZED) is None
    arrays = make_arrays(AttentionCase((9,), (9,), head_dim=16, block_size=5, dtype=BFLOAT16))
    arrays = (arrays.query, arrays.key_cache, arrays.block_tables)
    assert why_not("flash_attention_3", 9, "bfloat16", HOPPER) is None
    assert "cannot be gathered from blocks of 5" in why_not("flash_attention_3", 9, "bfloat16", HOPPER, arrays)
    assert why_not("flash_attention_2", 9, "bfloat16", HOPPER, arrays) is None


def test_what_a_variant_cannot_serve_its_fallbacks_serve():
    table = Variants(
        "minllm.kernels.attention",
        Variant("fastest", ".nowhere", most_rows=1, dtypes=("float16",), fallback="next"),
        Variant("next", ".nowhere", capability=HOPPER, fallback="last"),
        Variant("last", ".nowhere", most_rows=1),
    )
    assert table.serving("fastest", 1, "float16", (8, 0)) == "fastest"
    assert table.serving("fastest", 1, "float32", HOPPER) == table.serving("fastest", 2, "float16", HOPPER) == "next"
    assert table.serving("fastest", 2, "float16", (8, 0)) == "last"  # its launcher says why it cannot


def test_a_toy_is_found_by_name_everywhere(toy):
    """Its kernel by `minllm inspect`, a case by `minllm bench kernels`, its launcher by whoever asks the table."""
    from minllm.bench.kernel_cases import kernel_cases
    from minllm.cli.inspection import find_kernels

    assert attention.VARIANTS[toy] is importlib.import_module(TOY.module) and toy in attention.VARIANTS.names()
    assert [one.name for one in find_kernels("attention toy")] == ["attention/toy/bfloat16"]
    assert [case.variant for case in kernel_cases(("attention",))].count(toy) == 1
    assert choose(1, "bfloat16", HOPPER) == "split_tensor_core"  # until choice.py says otherwise


@pytest.mark.results_only
def test_a_toy_serves_the_engine_by_name(toy):
    from minllm.ops.cuda_ops import CudaOps
    from minllm.ops.numpy_ops import NumpyOps
    from tests.ops.test_cuda_ops import logits_of

    chunks = [[[5, 1, 7], [2]], [[3], [9]]]
    ops = CudaOps("float32", {"attention": toy}, simulated=True)
    assert ops._attention_variant(1, np.zeros(1)).toy_kernel
    ours, theirs = logits_of(ops, "llama", chunks, True), logits_of(NumpyOps("float32"), "llama", chunks, True)
    np.testing.assert_allclose(np.concatenate(ours), np.concatenate(theirs), rtol=0, atol=2e-5 * np.abs(theirs[0]).max())
    with pytest.raises(KernelArgumentError, match="there is no attention kernel 'toys'.*toy"):
        CudaOps("float32", {"attention": "toys"}, simulated=True)


def test_a_toy_is_tested_compiled_and_benchmarked_with_all_others(request, forked_python):
    """The parameters of the tests come from the table: with one more line in it they hold the toy too, and it passes them."""
    names = ("kernels/test_launches", "kernels/attention/test_attention_ladder", "compile/test_machine_code")
    files = [f"tests/{name}.py" for name in (*names, "bench/test_kernel_benchmarks")]
    chosen = "toy" if request.config.option.exhaustive else "toy and not (block_size or window or magnitude)"  # the smallest prompts
    options = ["-p", "tests.kernels.register_toy", "-p", "no:cacheprovider", "-q", "-rA", "--exhaustive", "-k", chosen]
    run = subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
    for test in (
        "test_results[attention/attention(variant=toy, query_lens=(1,),",
        "test_results[attention/attention(variant=toy, query_lens=(1, 1, 1),",
        "test_wrong_arguments_are_explained[toy]",
        "test_machine_code_is_as_designed[attention/toy/bfloat16]",
        "test_a_right_result_passes_and_a_wrong_one_does_not[toy-",
    ):
        assert f"::{test}" in run.stdout, run.stdout[-3000:]
