"""The table of GPUs: exact names, and figures that physics allows."""

import pytest

from minllm.hardware import GPUS, find_gpu


def test_h200_has_its_data_sheet_and_its_measured_ceiling():
    gpu = find_gpu("NVIDIA H200")
    assert (gpu.memory_gb, gpu.bandwidth_tb_s, gpu.bf16_tflops) == (141, 4.8, 989)
    assert gpu.ceiling_tb_s == 4.25
    assert gpu.ceiling_source == "measured copy"


def test_a_gpu_that_was_not_measured_is_held_against_its_data_sheet():
    gpu = find_gpu("NVIDIA GeForce RTX 4090")
    assert gpu.ceiling_tb_s == gpu.bandwidth_tb_s
    assert gpu.ceiling_source == "data sheet"


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "H200", "cpu", ""])
def test_a_name_has_to_match_whole(name):
    assert find_gpu(name) is None


@pytest.mark.parametrize("name", GPUS)
def test_a_measurement_never_exceeds_the_data_sheet(name):
    gpu = GPUS[name]
    assert 0.1 < gpu.bandwidth_tb_s < 10 and 10 < gpu.memory_gb < 300 and 50 < gpu.bf16_tflops < 3000
    assert (gpu.measured_copy_tb_s or 0) <= gpu.bandwidth_tb_s
    assert (gpu.measured_bf16_tflops or 0) <= gpu.bf16_tflops
