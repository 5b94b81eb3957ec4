"""The table of GPUs: exact names, figures that physics allows and that agree with each other, and the record's ceilings."""

import json
from pathlib import Path

import pytest

from minllm.errors import InvalidOptionError
from minllm.machine.hardware import ALIASES, GPUS, find_gpu, gpu_named
from tools import write_hardware_json

RECORD = Path(__file__).parent.parent.parent / "docs" / "results" / "h200.json"


def test_h200_has_its_data_sheet_and_its_measured_ceiling():
    gpu = find_gpu("NVIDIA H200")
    ceilings = json.loads(RECORD.read_text(encoding="utf-8"))["ceilings"]
    assert (gpu.memory_gb, gpu.bandwidth_tb_s, gpu.bf16_tflops) == (141, 4.8, 989)
    assert gpu.ceiling_tb_s == gpu.measured_copy_tb_s == ceilings["copy_tb_s"]
    assert gpu.measured_bf16_tflops == ceilings["bf16_tflops"]
    assert gpu.ceiling_source == "measured copy"


def test_a_gpu_that_was_not_measured_is_held_against_its_data_sheet():
    gpu = find_gpu("NVIDIA GeForce RTX 4090")
    assert gpu.ceiling_tb_s == gpu.bandwidth_tb_s
    assert gpu.ceiling_source == "data sheet"


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "H200", "cpu", ""])
def test_a_drivers_name_has_to_match_whole(name):
    assert find_gpu(name) is None


@pytest.mark.parametrize("name", GPUS)
def test_a_measurement_never_exceeds_the_data_sheet(name):
    gpu = GPUS[name]
    assert 0.1 < gpu.bandwidth_tb_s < 10 and 10 < gpu.memory_gb < 300 and 50 < gpu.fp16_tflops < 3000
    assert (gpu.measured_copy_tb_s or 0) <= gpu.bandwidth_tb_s
    assert (gpu.measured_bf16_tflops or 0) <= (gpu.bf16_tflops or 0)


@pytest.mark.parametrize("name", GPUS)
def test_rates_are_dense_and_fall_with_precision(name):
    """A sparse rate would be twice too large: bfloat16 runs as fast as float16, fp8 twice as fast with float32 accumulation, int8
    too (on GeForce four times), and tf32 half as fast; plain float32 at most half as fast."""
    gpu = GPUS[name]
    if gpu.bf16_tflops is not None:
        assert gpu.bf16_tflops == gpu.fp16_tflops
    if gpu.fp8_tflops is not None:
        assert gpu.fp8_tflops == pytest.approx(2 * gpu.fp16_tflops, rel=0.02)
    if gpu.int8_tops is not None:
        assert gpu.int8_tops == pytest.approx((4 if "GeForce" in name else 2) * gpu.fp16_tflops, rel=0.02)
    if gpu.tf32_tflops is not None:
        assert gpu.tf32_tflops == pytest.approx(gpu.fp16_tflops / 2, rel=0.03)
    assert gpu.fp32_tflops <= 1.01 * gpu.fp16_tflops / 2


# Bits of the memory's bus, and gigabits a second of each, from the chips' specifications.
BUSES = {
    "NVIDIA B200": (8192, 8.0),
    "NVIDIA H200": (6144, 6.25),
    "NVIDIA H100 80GB HBM3": (5120, 5.23),
    "NVIDIA H100 NVL": (6016, 5.2),
    "NVIDIA H100 PCIe": (5120, 3.19),
    "NVIDIA A100-SXM4-80GB": (5120, 3.186),
    "NVIDIA A100 80GB PCIe": (5120, 3.024),
    "NVIDIA A100-SXM4-40GB": (5120, 2.43),
    "NVIDIA A100-PCIE-40GB": (5120, 2.43),
    "NVIDIA L40S": (384, 18),
    "NVIDIA L4": (192, 12.5),
    "NVIDIA A10": (384, 12.5),
    "NVIDIA RTX A6000": (384, 16),
    "NVIDIA GeForce RTX 5090": (512, 28),
    "NVIDIA GeForce RTX 5080": (256, 30),
    "NVIDIA GeForce RTX 4090": (384, 21),
    "NVIDIA GeForce RTX 4080": (256, 22.4),
    "NVIDIA GeForce RTX 3090 Ti": (384, 21),
    "NVIDIA GeForce RTX 3090": (384, 19.5),
    "Tesla T4": (256, 10),
    "Tesla V100-SXM2-32GB": (4096, 1.752),
    "Tesla V100-SXM2-16GB": (4096, 1.752),
    "Tesla V100-PCIE-32GB": (4096, 1.752),
    "Tesla V100-PCIE-16GB": (4096, 1.752),
    "AMD Instinct MI300X": (8192, 5.2),
}


@pytest.mark.parametrize("name", GPUS)
def test_a_bandwidth_is_bus_width_times_data_rate(name):
    bits, gigabits = BUSES[name]
    rel = 0.03 if name in ("NVIDIA B200", "NVIDIA H100 PCIe") else 0.006  # their sheets round to a whole number of TB/s
    assert GPUS[name].bandwidth_tb_s == pytest.approx(bits * gigabits / 8e3, rel=rel)


# Multiply-adds that an SM's tensor cores do in a cycle in float16, from the architectures' whitepapers, and the boost clock of the card.
CLOCKS = {
    "NVIDIA H100 80GB HBM3": (2048, 1.83),
    "NVIDIA A100-SXM4-80GB": (1024, 1.41),
    "NVIDIA A10": (512, 1.695),
    "NVIDIA L4": (512, 2.04),
    "NVIDIA GeForce RTX 3090 Ti": (256, 1.86),
    "AMD Instinct MI300X": (1024, 2.1),
    "Tesla V100-PCIE-16GB": (512, 1.38),
    "Tesla V100-SXM2-16GB": (512, 1.53),
    "Tesla T4": (512, 1.59),
    "NVIDIA GeForce RTX 3090": (256, 1.695),
    "NVIDIA GeForce RTX 4090": (256, 2.52),
    "NVIDIA GeForce RTX 4080": (256, 2.505),
    "NVIDIA GeForce RTX 5090": (256, 2.407),
    "NVIDIA GeForce RTX 5080": (256, 2.617),
    "NVIDIA L40S": (512, 2.49),
    "NVIDIA RTX A6000": (512, 1.8),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_rate_is_multiprocessors_times_width_times_clock(name):
    """An independent count of the float16 rate: SMs x multiply-adds a cycle x 2 x GHz."""
    width, clock = CLOCKS[name]
    assert GPUS[name].fp16_tflops == pytest.approx(GPUS[name].multiprocessors * width * 2 * clock / 1e3, rel=0.02)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("rtx 3090 ti", "NVIDIA GeForce RTX 3090 Ti"),
        ("a100-40gb", "NVIDIA A100-SXM4-40GB"),
        ("v100", "Tesla V100-SXM2-32GB"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_names_that_users_type(typed, name):
    assert gpu_named(typed) == (name, GPUS[name])


@pytest.mark.parametrize("typed", ["", "h1000", "gpu", "-"])
def test_an_unknown_gpu_is_answered_with_the_list(typed):
    with pytest.raises(InvalidOptionError, match="h200.*mi300x"):
        gpu_named(typed)


def test_every_short_name_and_alias_is_found_and_is_one_gpus():
    names = [gpu.short_name for gpu in GPUS.values()]
    assert len(set(names)) == len(names) and not set(names) & set(ALIASES)
    for full_name, gpu in GPUS.items():
        assert gpu_named(gpu.short_name)[0] == gpu_named(full_name)[0] == full_name
    for alias, short in ALIASES.items():
        assert gpu_named(alias)[1].short_name == short


def test_the_generated_tables_are_up_to_date():
    """Else run `python tools/write_hardware_json.py`."""
    assert write_hardware_json.MEASUREMENTS.read_text(encoding="utf-8") == write_hardware_json.measurements_text()
    assert write_hardware_json.HARDWARE.read_text(encoding="utf-8") == write_hardware_json.hardware_text()
