"""Every kernel variant, compiled for every generation without a GPU: no spill, no stack frame, no register over the budget, no float64.

Kernels that differ in nothing but the dtype of their arrays are compiled for all four generations in bfloat16, in the other dtypes for
Hopper alone. MINLLM_GATE=full compiles all for all.
"""

import dataclasses
import os
import re

import pytest

from minllm.cli import inspection
from minllm.cli.inspection import inspect_specimen
from minllm.kernels.specimens import all_specimens
from minllm.machine.devices import missing_compilers
from tests.compile.table import PROPERTY

SPECIMENS = all_specimens()
HOPPER = (9, 0)
FULL = os.environ.get("MINLLM_GATE") == "full"


def targets_of(specimen):
    """The targets that the gate compiles a specimen for."""
    rest, _, dtype = specimen.name.rpartition("/")
    is_another_dtype = dtype in ("float32", "float16") and f"{rest}/bfloat16" in SPECIMENS
    return (HOPPER,) if is_another_dtype and not FULL else specimen.targets


@pytest.fixture(scope="module", autouse=True)
def toolkit():
    """Skip where the compiler's libraries are not installed: the simulator's tests need none of them."""
    if missing := missing_compilers():
        pytest.skip(f"{', '.join(missing)} of the CUDA toolkit cannot be loaded, and nothing is compiled without: install minllm[cu13]")
    if not inspection.has_nvdisasm():
        pytest.skip("nvdisasm is not installed, and machine code cannot be read without: install minllm[inspect]")


@pytest.mark.parametrize("name", SPECIMENS)
def test_machine_code_is_as_designed(name, record_property):
    """All targets in one test: the kernel's device functions are then lowered once."""
    inspections = [inspect_specimen(SPECIMENS[name], target) for target in targets_of(SPECIMENS[name])]
    for it in inspections:
        row = dict(name=name, target=it.target, registers=it.registers, budget=it.register_budget, blocks=it.occupancy.blocks,
                   wanted_blocks=it.wanted_blocks, faults=it.faults())  # fmt: skip
        record_property(PROPERTY, row)
    assert {it.target: it.faults() for it in inspections if it.faults()} == {}


@pytest.mark.parametrize(
    "name, loads",
    {
        "normalization/layer_norm/vectors/2/bfloat16": 4,  # two vectors of x and of the residual
        "rope/vectors/bfloat16": 8,  # two heads of two vectors, and the angles
        "kv/qkv_rope_append/vectors/128/2/bfloat16": 8,
        "kv/qkv_rope_append/vectors/128_with_norm/2/bfloat16": 8,
        "kv/qkv_rope_append/vectors/128_with_norm/1/bfloat16": 8,  # one head, the angles and the weights
    }.items(),
)
def test_loads_do_not_wait_for_each_other(name, loads):
    """Before the first instruction that uses what came, the one that takes the upper of two bfloat16, all loads have started."""
    code = SPECIMENS[name].compile(HOPPER).sass()
    first_use = next(i for i, line in enumerate(code) if line.startswith("LOP3") and "0xffff0000" in line)
    assert sum(bool(re.search(r"\bLDG?\.E\.128", line)) for line in code[:first_use]) == loads


def test_every_kernel_of_the_package_is_a_specimen():
    """A kernel that is forgotten in the lists would pass unseen."""
    from minllm.kernels import specimens
    from tests.compile.kernels_in_sources import kernel_names

    listed = {(specimen.kernel.__module__, specimen.kernel.function.__name__) for specimen in SPECIMENS.values()}
    assert kernel_names(specimens.STAGES) <= listed


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
