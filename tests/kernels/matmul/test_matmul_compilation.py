"""The matrix product's machine code: nothing spills, tensor cores are fed asynchronously, gemv has its loads in flight together."""

import re

import pytest

from minllm.kernels.matmul import gemv
from tests.kernels.guarded import BFLOAT16
from tests.kernels.matmul.compilations import HOPPER, arguments, compilations

COMPILATIONS = compilations()


def opcodes(compiled):
    """The instructions' names, in order, without predicates and operands."""
    return [re.sub(r"^@!?U?P\w+ ", "", instruction).split()[0] for instruction in compiled.sass()]


@pytest.mark.parametrize("name", COMPILATIONS)
def test_nothing_spills(name):
    kernel, types, target = COMPILATIONS[name]
    compiled = kernel.compile(*types, compute_capability=target)
    assert compiled.spill_bytes == compiled.stack_bytes == 0


@pytest.mark.parametrize("name", [name for name in COMPILATIONS if name.startswith("tensor_core")])
def test_tensor_cores_are_fed_by_ldmatrix_and_asynchronous_copies(name):
    kernel, types, target = COMPILATIONS[name]
    found = opcodes(kernel.compile(*types, compute_capability=target))
    assert any(opcode.startswith("HMMA.16816.F32") for opcode in found) and any(opcode.startswith("LDSM.16.M88.4") for opcode in found)
    assert any(opcode.startswith("LDGSTS.E.BYPASS") and opcode.endswith("128") for opcode in found) == ("by elements" not in name)


def test_the_large_tile_multiplies_without_a_pause():
    kernel, types, target = COMPILATIONS["tensor_core, bfloat16, 9.0"]
    found = opcodes(kernel.compile(*types, compute_capability=target))
    products = [i for i, opcode in enumerate(found) if opcode.startswith("HMMA")]
    between = found[products[0] : products[-1]]
    assert len(products) == 64  # all of a tile: 2 steps of 32, unrolled
    assert sum(opcode.startswith("LDSM") for opcode in between) >= 1  # fragments are loaded while others are multiplied
    assert not any(opcode.startswith(("BRA", "BAR", "DEPBAR")) for opcode in between)


@pytest.mark.parametrize(
    "tiling", [gemv.GemvTiling(1, 8, 4), gemv.GemvTiling(2, 4, 4), gemv.GemvTiling(2, 4, 2), gemv.GemvTiling(1, 8, 4, 2)]
)
def test_gemv_issues_all_loads_of_weights_before_it_multiplies(tiling):
    compiled = gemv.gemv_kernel(1, 8192, "bfloat16", tiling, True).compile(*arguments(BFLOAT16, bias=False), compute_capability=HOPPER)
    found = opcodes(compiled)
    weights = [i for i, opcode in enumerate(found) if opcode.startswith("LDG.E.NA") and ".128" in opcode]  # NA: past L1
    products = [i for i, opcode in enumerate(found) if opcode.startswith("FFMA")]
    assert len(weights) == tiling.rows * tiling.unroll
    assert weights[-1] < products[0]
    assert any(opcode.startswith("LDG.E.128") for opcode in found)  # x
    assert compiled.registers <= 80
