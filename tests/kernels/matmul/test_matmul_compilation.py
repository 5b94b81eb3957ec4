"""The order of the matrix product's machine instructions: gemv has its loads in flight together, tensor cores multiply without a pause.

What holds for every kernel (no spills, registers, wide loads) is asked in tests/compile.
"""

import pytest

from minllm.catalogue import machine_code
from minllm.catalogue.matmul.products import product
from minllm.kernels.matmul import tensor_core
from minllm.kernels.matmul.gemv import gemv
from minllm.runtime.machine_code import opcodes, sass_of_all

HOPPER = (9, 0)
LARGE = f"tensor_core/{tensor_core.TILINGS[0].tile_m}x{tensor_core.TILINGS[0].tile_n}"
WGMMA = [f"wgmma/{name}" for name in ("128x256", "128x256/cluster", "128x256/silu", "bias", "64x96/cluster/early")]
TILINGS = [gemv.GemvTiling(1, 8, 4), gemv.GemvTiling(2, 4, 4), gemv.GemvTiling(2, 4, 2), gemv.GemvTiling(1, 8, 4, 2)]
RUNGS = ["warpgroup/pairs", "warp_specialized/pairs", "warpgroup/out float32", "warp_specialized/out float32"]


@pytest.fixture(scope="module")
def opcodes_of():
    """{kernel: the opcodes of its machine code} of those with tensor cores; nvdisasm, which takes long to start, reads them together."""
    names = [LARGE, *WGMMA, *RUNGS]
    read = sass_of_all([machine_code()[f"matmul/{name}/bfloat16"].compile(HOPPER) for name in names])
    return dict(zip(names, map(opcodes, read), strict=True))


def test_the_large_tile_multiplies_without_a_pause(opcodes_of):
    found = opcodes_of[LARGE]
    products = [i for i, opcode in enumerate(found) if opcode.startswith("HMMA")]
    between = found[products[0] : products[-1]]
    assert len(products) == 64  # all of a tile: 2 steps of 32, unrolled
    assert sum(opcode.startswith("LDSM") for opcode in between) >= 1  # fragments are loaded while others are multiplied
    assert not any(opcode.startswith(("BRA", "BAR", "DEPBAR")) for opcode in between)


@pytest.mark.parametrize("name", WGMMA)
def test_wgmma_s_products_are_not_serialised(name, opcodes_of):
    found = opcodes_of[name]
    products = [i for i, opcode in enumerate(found) if opcode.startswith("HGMMA")]
    assert len(products) == 4  # a step of 64 of K
    between = found[products[0] : products[-1]]
    assert not any(opcode.startswith(("WARPGROUP", "S2R", "LD", "BRA", "BAR")) for opcode in between)
    waits = [i for i, opcode in enumerate(found) if opcode.startswith("WARPGROUP.DEPBAR")]
    assert len(waits) == 2 and waits[0] > products[-1]  # for the step before, and at the end of a tile for all
    assert waits[0] - products[0] < 60  # few instructions a step: addresses are kept, descriptors need an addition


@pytest.mark.parametrize("name", RUNGS)
def test_the_rungs_below_wgmma_wait_once_a_step(name, opcodes_of):
    found = opcodes_of[name]
    products = [i for i, opcode in enumerate(found) if opcode.startswith("HGMMA")]
    assert len(products) == 4  # a step of 64 of K
    assert not any(opcode.startswith(("WARPGROUP", "S2R", "LD", "BRA", "BAR")) for opcode in found[products[0] : products[-1]])
    assert sum(opcode.startswith("WARPGROUP.DEPBAR") for opcode in found) == 1
    assert not any(opcode.startswith(("LDL", "STL")) for opcode in found)  # sums stay in registers


@pytest.fixture(scope="module")
def gemvs():
    """{tiling: (CompiledKernel, its opcodes)} for rows so long that the loop is not unrolled."""
    kernels = [product("gemv", 1, 8, 65536, tiling=tiling).kernels(HOPPER)[0] for tiling in TILINGS]
    compiled = [kernel.compile(*types, compute_capability=HOPPER) for kernel, types in kernels]
    return dict(zip(TILINGS, zip(compiled, map(opcodes, sass_of_all(compiled))), strict=True))


@pytest.mark.parametrize("tiling", TILINGS)
def test_gemv_issues_all_loads_of_weights_before_it_multiplies(tiling, gemvs):
    compiled, found = gemvs[tiling]
    weights = [i for i, opcode in enumerate(found) if opcode.startswith("LDG.E.NA") and ".128" in opcode]  # NA: past L1
    products = [i for i, opcode in enumerate(found) if opcode.startswith("FFMA")]
    step = tiling.rows * tiling.unroll
    steps = [weights[i : i + step] for i in range(0, len(weights), step)]  # the first, and the loop
    assert len(weights) == 2 * step
    assert not any(loads[0] < product < loads[-1] for loads in steps for product in products)
    wait = found.index("ACQBULK")  # for the kernel's predecessor: only once the first loads are on their way
    assert steps[0][-1] < wait < products[0] and found.count("ACQBULK") == 1
    assert any(opcode.startswith("LDG.E.128") for opcode in found)  # x
    assert compiled.registers <= 80


def longest_run(found, product):
    """Instructions between two branches around the most of these products: the body of the loop, which is unrolled."""
    ends = [i for i, opcode in enumerate(found) if opcode.startswith("BRA")]
    runs = [found[first + 1 : last + 1] for first, last in zip(ends, ends[1:])]
    return max(runs, key=lambda run: sum(opcode.startswith(product) for opcode in run))


@pytest.mark.covering("form")
@pytest.mark.parametrize(
    "form, shape, product, codes, most",  # codes: bytes of them that the run multiplies
    [
        ("int4_gemv", "1/128", "FFMA", 512, 250),
        ("tensor_core_gemv/int4/128", "8x6144x4096", "HMMA", 4096, 46),
        ("tensor_core_gemv/int4/128", "16x6144x4096", "HMMA", 4096, 57),
        ("tensor_core_gemv/int4/32_minimums", "8x6144x4096", "HMMA", 4096, 70),
        ("tensor_core_gemv/nf4/nested", "8x6144x4096", "HMMA", 4096, 58),
        ("tensor_core_gemv/nf4/nested", "16x6144x4096", "HMMA", 4096, 71),
    ],
)
def test_instructions_per_16_byte_load_of_codes(form, shape, product, codes, most):
    """Of a warp, per 512 bytes of codes; one row of x has time for about 110 at the speed of HBM."""
    run = longest_run(opcodes(machine_code()[f"matmul/{form}/{shape}/bfloat16"].compile(HOPPER).sass()), product)
    assert 0.9 * most <= len(run) / (codes / 512) <= most
