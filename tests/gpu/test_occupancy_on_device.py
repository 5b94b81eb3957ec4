"""What is computed of compiled kernels without a GPU, against what the driver says of them on one."""

import pytest

from minllm.catalogue import machine_code
from minllm.machine.occupancy import multiprocessor_of, occupancy
from minllm.runtime.device import check_driver, current_device
from minllm.runtime.kernel import LoadedKernel


@pytest.mark.covering("code.threads", "code.blocks")
@pytest.mark.parametrize("code", machine_code().values(), ids=machine_code())
def test_registers_and_occupancy_are_those_of_the_driver(code):
    from cuda.bindings import driver

    device = current_device()
    compiled = code.compile(device.compute_capability)
    loaded = LoadedKernel(compiled, device)
    registers = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert check_driver(driver.cuKernelGetAttribute(registers, loaded.kernel, device.index), "ask for registers") == compiled.registers
    if code.shared_bytes > loaded.shared_bytes_allowed:
        loaded.allow_shared_bytes(code.shared_bytes)
    question = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(loaded.function, code.threads, code.shared_bytes)
    shared_bytes = compiled.shared_bytes + code.shared_bytes
    found = occupancy(device.compute_capability, code.threads, compiled.registers, shared_bytes)
    assert found.blocks == check_driver(question, "ask for the occupancy")


def test_a_kernel_asks_for_its_division_of_an_sms_memory():
    from cuda.bindings import driver

    device, code = current_device(), next(iter(machine_code().values()))
    compiled = code.compile(device.compute_capability)
    carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    for given, expected in ((None, -1), (0, 0), (50, 50)):
        loaded = LoadedKernel(compiled, device, carveout=given)
        assert check_driver(driver.cuKernelGetAttribute(carveout, loaded.kernel, device.index), "ask for the carveout") == expected


def test_the_table_of_limits_is_right_for_this_gpu():
    from cuda.bindings import driver

    device, attribute = current_device(), driver.CUdevice_attribute
    has = multiprocessor_of(device.compute_capability)
    wanted = {
        attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: 32 * has.warps,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: has.blocks,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: has.shared_kib * 1024,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: has.block_shared_bytes,
        attribute.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: has.reserved_kib * 1024,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: 65_536,
    }
    assert {key: check_driver(driver.cuDeviceGetAttribute(key, device.index), "ask") for key in wanted} == wanted
