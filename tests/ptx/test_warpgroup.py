"""wgmma in the simulator against NumPy; what it says of kernels that forget to wait; and the machine code."""

import re

import numpy as np
import pytest
from numba import cuda, float32, uint8, uint16, uint32

from minllm import ptx
from minllm.errors import KernelArgumentError, SimulationError
from minllm.runtime.kernel import kernel
from minllm.runtime.machine_code import sass_of_all
from tests.ptx.cases_warpgroup import BFLOAT16, PRODUCTS, check_product, make_product_kernel, product_arguments


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_every_layout_gives_the_product(product, device):
    check_product(product, device)


INSTRUCTIONS = {
    "bf16": ("HGMMA", "16.F32.BF16"),
    "f16": ("HGMMA", "16.F32"),
    "e4m3": ("QGMMA", "32.F32.E4M3.E4M3"),
    "s8": ("IGMMA", "32.S8.S8"),
}


def test_a_product_compiles_to_one_instruction_without_spills(device):
    products = [PRODUCTS[i] for i in (0, 3, 4, 6, 9, 12, 15, 18)]
    compiled = [make_product_kernel(*product)[0].compile(*product_arguments(product, device)[0]) for product in products]
    for product, one, sass in zip(products, compiled, sass_of_all(compiled), strict=True):
        name, kind = INSTRUCTIONS[product[1]]
        assert sum(f"{name}.64x{product[0]}x{kind}" in line for line in sass) == 4, product
        assert sum("WARPGROUP.DEPBAR" in line for line in sass) == 1 and any("UTMALDG.2D" in line for line in sass)
        assert (one.spill_bytes, one.stack_bytes) == (0, 0)


wgmma = ptx.make_wgmma(8, "bf16")
from_registers = ptx.make_wgmma(8, "bf16", a="registers")
ONES = int(np.array([1, 1], BFLOAT16).view(np.uint32)[0])


def make_mistaken(mistake):
    """All ones [64, 16] times all ones [8, 16], so that every element is 16; with one thing missing or too early."""
    fence_memory, fence, wait, fence_again = (int(mistake != name) for name in ("no proxy fence", "no fence", "no wait", "no second fence"))
    early_tile, early_register = int(mistake == "early tile"), int(mistake == "early register")
    twice = int(mistake in ("twice", "no second fence"))

    @kernel
    def mistaken_kernel(out):
        memory = cuda.shared.array(2048, uint8, 1024)
        tile = memory.view(uint16)
        thread = cuda.threadIdx.x
        one = uint16(0x3F80)
        for i in range(8):
            tile[thread * 8 + i] = one
        if fence_memory:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        words = cuda.local.array(4, uint32)
        for i in range(4):
            words[i] = uint32(ONES)
        accumulator = cuda.local.array(4, float32)
        right = ptx.matrix_descriptor(ptx.shared_address(memory, 0), 128, 128, 0)
        if fence:
            ptx.wgmma_fence()
        from_registers(accumulator, words, 0, right, 0)
        ptx.wgmma_commit_group()
        if early_register:
            words[0] = uint32(0)
        if early_tile:
            tile[thread * 8] = uint16(0)
            ptx.fence_proxy_async()
        if wait:
            ptx.wgmma_wait_group_0()
        if twice:
            if fence_again:
                ptx.wgmma_fence()
            wgmma(accumulator, right, right, 1)
            ptx.wgmma_commit_group()
            ptx.wgmma_wait_group_0()
        out[thread] = accumulator[0]
        ptx.wgmma_wait_group_0()

    return mistaken_kernel


def run(mistake, detect=None):
    out = np.zeros(128, np.float32)
    make_mistaken(mistake).simulate[1, 128](out, detect=detect)
    return out


def test_products_without_a_mistake():
    np.testing.assert_array_equal(run("none"), 16)
    np.testing.assert_array_equal(run("twice"), 32)


@pytest.mark.parametrize("mistake", ["no wait", "no proxy fence", "early tile", "early register"])
def test_what_a_gpu_may_hide_gives_the_wrong_answer(mistake):
    assert (run(mistake, detect=False) != 16).any()


def test_detectors_name_the_read_that_came_too_early():
    with pytest.raises(SimulationError, match="race on registers: this thread reads the local array accumulator"):
        run("no wait", detect=True)


@pytest.mark.parametrize("mistake", ["no fence", "no second fence"])
def test_registers_that_no_fence_has_settled_are_refused(mistake):
    with pytest.raises(SimulationError, match="without wgmma_fence"):
        run(mistake)


@kernel
def half_a_warpgroup_kernel(out):
    accumulator = cuda.local.array(4, float32)
    if cuda.threadIdx.x < 64:
        ptx.wgmma_fence()
        wgmma(accumulator, ptx.matrix_descriptor(0, 128, 128, 0), ptx.matrix_descriptor(0, 128, 128, 0), 0)
        ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_0()


@kernel
def different_operands_kernel(out):
    accumulator = cuda.local.array(4, float32)
    ptx.wgmma_fence()
    wgmma(accumulator, ptx.matrix_descriptor(cuda.threadIdx.x // 32 * 1024, 128, 128, 0), ptx.matrix_descriptor(0, 128, 128, 0), 0)
    ptx.wgmma_commit_group()
    ptx.wgmma_wait_group_0()


@kernel
def abandoned_kernel(out):
    accumulator = cuda.local.array(4, float32)
    ptx.wgmma_fence()
    wgmma(accumulator, ptx.matrix_descriptor(0, 128, 128, 0), ptx.matrix_descriptor(0, 128, 128, 0), 0)
    ptx.wgmma_commit_group()


@pytest.mark.parametrize(
    "wrong, complaint",
    [
        (half_a_warpgroup_kernel, "64 threads .* wait at wgmma.wait_group 0 of warpgroup 0"),
        (different_operands_kernel, "do not all execute the same"),
        (abandoned_kernel, "wgmmas in flight: wait with wgmma.wait_group"),
    ],
)
def test_a_warpgroup_acts_as_one(wrong, complaint):
    with pytest.raises(SimulationError, match=complaint):
        wrong.simulate[1, 128, None, 4096](np.zeros(1, np.float32), detect=False)  # operands that nobody wrote are not the point here


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 12},
        {"n": 264},
        {"n": 64, "dtype": "f32"},
        {"n": 64, "a": "global"},
        {"n": 64, "b_major": "m"},
        {"n": 40, "dtype": "s8"},
        {"n": 64, "dtype": "e4m3", "b_major": "mn"},
    ],
)
def test_products_that_do_not_exist_are_refused(wrong):
    with pytest.raises(KernelArgumentError, match="no wgmma with"):
        ptx.make_wgmma(**wrong)


def test_descriptor_bits():
    function = ptx.matrix_descriptor.py_func
    descriptor = int(function(np.uint32(0x12340), 256, 1024, 128))
    assert descriptor == 0x1234 | 16 << 16 | 64 << 32 | 1 << 62
    assert [int(function(np.uint32(0), 16, 16, s)) >> 62 for s in (0, 128, 64, 32)] == [0, 1, 2, 3]
    assert int(ptx.advance_descriptor.py_func(np.uint64(descriptor), 32)) - descriptor == 2


def test_flops_are_counted(device):
    counted = []
    product = PRODUCTS[0]
    arguments, _ = product_arguments(product, device)
    from minllm.sim import simulate
    from minllm.sim.monitor import Monitor

    class Flops(Monitor):
        def flops(self, thread, count, kind):
            counted.append((count, kind))

    product_kernel, _, _, shared_bytes = make_product_kernel(*product)
    simulate(product_kernel, 1, 128, *arguments, shared_bytes=shared_bytes, monitors=[Flops()])
    assert [count for count, kind in counted if re.match("wgmma", kind)] == [2 * 64 * 8 * 16] * 4
