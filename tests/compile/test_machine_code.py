"""Kernel variants, compiled for every generation without a GPU: no spill, no stack frame, no register over the budget, no float64.

Without --exhaustive a covering selection of (kernel, target) is compiled (tests/covering.py): every kernel function and every variant;
every stage for each of its targets, its dtypes and its cache formats; every dtype for every target. Of equals it takes one that another
test compiles too, because the disk cache holds it for both. With --exhaustive it is every kernel: bfloat16 for all four generations, and
dtypes that differ from it in nothing but the arrays for Hopper alone, or for all four too with MINLLM_GATE=full.
"""

import dataclasses
import functools
import os
import re

import pytest

from minllm.catalogue import STAGES, machine_code
from minllm.cli import inspection
from minllm.cli.inspection import inspect_kernel
from minllm.kernels.quantization.formats import KV_FORMATS
from minllm.machine.devices import missing_compilers
from minllm.runtime.machine_code import opcodes, sass_of_all
from tests.compile.table import PROPERTY
from tests.covering import covering

EVERY = machine_code()
HOPPER = (9, 0)
FULL = os.environ.get("MINLLM_GATE") == "full"
LOADS = {  # kernel: the loads of 16 bytes that start before the first of them is used
    "normalization/layer_norm/vectors/2/bfloat16": 4,  # two vectors of x and of the residual
    "rope/vectors/bfloat16": 8,  # two heads of two vectors, and the angles
    "kv/qkv_rope_append/vectors/128/2/bfloat16": 8,
    "kv/qkv_rope_append/vectors/128_with_norm/2/bfloat16": 8,
    "kv/qkv_rope_append/vectors/128_with_norm/1/bfloat16": 8,  # one head, the angles and the weights
}
# Kernels that tests compile for Hopper to see the order of their instructions: here, and in tests/kernels.
COMPILED_BY_OTHERS = {
    *LOADS,
    *(f"matmul/wgmma/{name}/bfloat16" for name in ("128x256/cluster", "128x256/silu", "bias", "64x96/cluster/early")),
    *(f"matmul/{name}/bfloat16" for name in ("tensor_core/128x256", "warpgroup/pairs", "warp_specialized/pairs")),
    "matmul/mixed_input_int4/128x64/32_minimums/bfloat16",
    *(f"matmul/{name}/bfloat16" for name in ("int4_gemv/1/128", "tensor_core_gemv/int4/128/8x6144x4096")),
    "attention/flash_attention_3/128/128x128/paged/bfloat16",
    "attention/flash_attention_3_float8/fp8_e4m3/128/128x160/paged/bfloat16",
}


def exhaustive_targets():
    """{name: the targets for which --exhaustive compiles a kernel}."""
    found = {}
    for name, code in EVERY.items():
        rest, _, dtype = name.rpartition("/")
        is_another_dtype = dtype in ("float32", "float16") and f"{rest}/bfloat16" in EVERY
        found[name] = (HOPPER,) if is_another_dtype and not FULL else code.targets
    return found


def features(pair):
    """What the selection must meet of a kernel for a target."""
    name, target = pair
    stage, variant, *words = name.split("/")
    function, dtype = EVERY[name].kernel.function, words[-1] if words else ""
    variant, function = f"{stage}/{variant}", (function.__module__, function.__name__)
    formats = [(stage, word) for word in words if word in KV_FORMATS]
    return [function, variant, (stage, target), (stage, dtype), (dtype, target), *formats]


def all_pairs():
    """Every kernel with each of its targets, as (name, target); those that other tests compile are first."""
    pairs = [(name, target) for name, code in EVERY.items() for target in code.targets]
    return sorted(pairs, key=lambda pair: pair[0] not in COMPILED_BY_OTHERS or pair[1] != HOPPER)


def selected_targets():
    """{name: targets} of the covering selection."""
    found = {}
    for name, target in covering(all_pairs(), features):
        found.setdefault(name, []).append(target)
    return found


@functools.cache
def chosen_targets(exhaustive):
    """{name: the targets for which a run compiles a kernel}."""
    return exhaustive_targets() if exhaustive else selected_targets()


def pytest_generate_tests(metafunc):
    """One test per kernel, with all its targets: Numba then types and lowers the kernel's device functions once. One more per target."""
    if "targets" in metafunc.fixturenames:
        chosen = chosen_targets(metafunc.config.option.exhaustive)
        metafunc.parametrize(("name", "targets"), chosen.items(), ids=chosen)
    if "names" in metafunc.fixturenames:
        names_of = {}
        for name, targets in chosen_targets(metafunc.config.option.exhaustive).items():
            for target in targets:
                names_of.setdefault(target, []).append(name)
        metafunc.parametrize(("target", "names"), names_of.items(), ids=["{}.{}".format(*target) for target in names_of])


@pytest.fixture(scope="module", autouse=True)
def toolkit():
    """Skip if the compiler's libraries are not installed: the simulator's tests need none of them."""
    if missing := missing_compilers():
        pytest.skip(f"{', '.join(missing)} of the CUDA toolkit cannot be loaded, and nothing is compiled without: install minllm[cu13]")
    if not inspection.has_nvdisasm():
        pytest.skip("nvdisasm is not installed, and machine code cannot be read without: install minllm[inspect]")


def test_machine_code_is_as_designed(name, targets, record_property):
    """All but the instructions, as ptxas reports it."""
    inspections = [inspect_kernel(EVERY[name], target, sass=[]) for target in targets]
    for it in inspections:
        row = dict(name=name, target=it.target, registers=it.registers, budget=it.register_budget, blocks=it.occupancy.blocks,
                   wanted_blocks=it.wanted_blocks, faults=it.faults())  # fmt: skip
        record_property(PROPERTY, row)
    assert {it.target: it.faults() for it in inspections if it.faults()} == {}


@pytest.mark.timeout(3600)
def test_instructions_are_as_designed(target, names):
    """The disk cache holds the kernels; nvdisasm reads them together, because it takes 0.3 s to start."""
    compiled = [EVERY[name].compile(target) for name in names]
    read = sass_of_all(compiled)
    assert all(read) and opcodes(read[-1]) == opcodes(compiled[-1].sass())
    faults = {name: inspect_kernel(EVERY[name], target, sass).faults() for name, sass in zip(names, read, strict=True)}
    assert {name: found for name, found in faults.items() if found} == {}


def test_loads_do_not_wait_for_each_other():
    """Before the first instruction that uses what came, the one that takes the upper of two bfloat16, all loads have started."""
    started = {}
    for name, code in zip(LOADS, sass_of_all([EVERY[name].compile(HOPPER) for name in LOADS]), strict=True):
        first_use = next(i for i, line in enumerate(code) if line.startswith("LOP3") and "0xffff0000" in line)
        started[name] = sum(bool(re.search(r"\bLDG?\.E\.128", line)) for line in code[:first_use])
    assert started == LOADS


def test_the_selection_covers_every_kernel_variant_target_and_dtype():
    assert COMPILED_BY_OTHERS <= set(EVERY)
    pairs = {(name, target) for name, targets in selected_targets().items() for target in targets}
    assert {f for pair in pairs for f in features(pair)} == {f for pair in all_pairs() for f in features(pair)}
    assert {"/".join(name.split("/")[:2]) for name, _ in pairs} == {"/".join(name.split("/")[:2]) for name in EVERY}
    for stage in {name.split("/")[0] for name in EVERY}:
        theirs = [name for name in EVERY if name.startswith(f"{stage}/")]
        compiled = [(name, target) for name, target in pairs if name in theirs]
        assert {target for _, target in compiled} == {target for name in theirs for target in EVERY[name].targets}
        assert {name.split("/")[-1] for name, _ in compiled} == {name.split("/")[-1] for name in theirs}
    assert len(pairs) < len(all_pairs()) / 10 and selected_targets() == selected_targets()


def test_every_kernel_of_the_package_is_compiled():
    """A kernel that is forgotten in the lists would pass unseen."""
    from tests.compile.kernels_in_sources import kernel_names

    listed = {(code.kernel.__module__, code.kernel.function.__name__) for code in EVERY.values()}
    assert kernel_names(STAGES) <= listed


@pytest.mark.parametrize(
    "change, fault",
    [
        (dict(registers=65, register_budget=64), "65 registers of 64"),
        (dict(spill_bytes=4), "spills 4 bytes"),
        (dict(stack_bytes=8), "stack frame of 8 bytes"),
        (dict(float64=["DMUL"]), "float64: DMUL"),
        (dict(local_memory=["LDL"]), "local memory: LDL"),
        (dict(missing=["LDG*128*"]), r"no instruction LDG\*128\*"),
        (dict(occupancy=dataclasses.replace(inspection.occupancy(HOPPER, 128, 32, 0), blocks=0)), "cannot be launched"),
    ],
)
def test_each_fault_is_found(change, fault):
    """A gate that cannot fail is none."""
    good = inspection.Inspection(
        name="", kernel="", source="", target="", threads=128, registers=32, register_budget=64, spill_bytes=0,
        accepted_spill_bytes=0, stack_bytes=0, static_shared_bytes=0, dynamic_shared_bytes=0, wanted_blocks=8,
        occupancy=inspection.occupancy(HOPPER, 128, 32, 0), instructions={}, float64=[], why_float64="", local_memory=[], missing=[],
    )  # fmt: skip
    assert not good.faults()
    assert not dataclasses.replace(good, spill_bytes=4, accepted_spill_bytes=4, stack_bytes=8, local_memory=["LDL"]).faults()
    assert not dataclasses.replace(good, float64=["DMUL"], why_float64="an exact sum").faults()
    found = dataclasses.replace(good, **change).faults()
    assert len(found) == 1
    assert re.search(fault, found[0])
