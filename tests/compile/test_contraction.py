"""The compiler makes those sums and products one fma that the simulator does, and none without contraction."""

import linecache
import re

import pytest

from minllm.machine.devices import missing_compilers
from minllm.machine.numba_cuda import types
from minllm.runtime import listing
from minllm.runtime.compiler import OPTIONS, prepare
from minllm.runtime.kernel import kernel
from minllm.runtime.machine_code import disassembled
from minllm.sim.typing import infer_kernel
from tests.sim.test_contraction import CASES, all_cases

ARGUMENTS = types.Array(types.float32, 3, "C", readonly=True), types.float32, types.Array(types.float32, 3, "C")
needs_compilers = pytest.mark.skipif(bool(missing_compilers()), reason="the CUDA toolkit's compiler libraries are not installed")
FUSED, ADDED = re.compile(r"[FDH]FMA"), re.compile(r"[FDH]ADD")


@pytest.fixture(scope="module")
def sums_of():
    """{contract: {line: (fma's, additions)}} of the machine code of all_cases()."""
    function, _ = all_cases()
    linker, _, _ = prepare(function, ARGUMENTS, (9, 0), OPTIONS, lineinfo=True)  # once: it is the linker that contracts
    found = {}
    for linker.contract in (True, False):
        counts = found[linker.contract] = {}
        for piece in listing.sass_pieces(disassembled(linker.link_to("cubin"), "-c", "-g")):
            fused, added = counts.get(piece.line, (0, 0))
            names = [opcode(one) for one in piece.instructions]
            counts[piece.line] = fused + sum(map(bool, map(FUSED.match, names))), added + sum(map(bool, map(ADDED.match, names)))
    return found


def opcode(instruction):
    """The name of an instruction, without its predicate."""
    return re.sub(r"^\s*(@!?U?P\w+\s+)?", "", instruction)


@needs_compilers
@pytest.mark.parametrize("name", CASES)
def test_the_machine_code_has_the_fma_of_the_simulator(name, sums_of):
    function, lines = all_cases()
    inference = infer_kernel(function, ARGUMENTS)
    inner = [one for one in inference.called.values() if one is not None and one.contraction]
    places = {node.lineno for node in inference.contraction.fused}
    places |= {node.lineno for node, one in inference.called.items() if one in inner and one.contraction.fused}
    explicit = {line for line in lines[name] if "fma" in compiled_line(function, line)}
    for line in lines[name]:
        assert (sums_of[True].get(line, (0, 0))[0] > 0) == (line in places | explicit), compiled_line(function, line)
        assert sums_of[False].get(line, (0, 0))[0] == len(explicit & {line})


def compiled_line(function, line):
    return linecache.getline(function.__code__.co_filename, line)


@needs_compilers
def test_16_bit_products_are_rounded_without_contraction():
    def sums(x, out):
        out[0] = x[0] * x[1] + x[2]

    array = types.Array(types.float16, 1, "C")
    fused, rounded = (made.compile(array, array).sass() for made in (kernel(sums), kernel(sums).without_contraction()))
    assert any("HFMA2" in one for one in fused) and any("HMUL2" in one for one in rounded) and any("HADD2" in one for one in rounded)
