"""Data sheets of common GPUs, and measured ceilings.

Every speed in minllm is compared with these limits. A decode step reads every weight once and does two FLOPs per weight, so its limit is
memory bandwidth; the limit of a long prefill is the tensor cores. No kernel reaches the data sheet's bandwidth. If the rate of a large
copy was measured (bytes read plus bytes written), it is the ceiling, and reports give a kernel's bandwidth as a share of it.

Each figure is from the data sheet in `source`. It was compared with public digests of the same sheets and with the chip's geometry:
bandwidth = bus width * data rate, FLOP/s = SMs * width * clock (tests/machine checks both).

Rates are dense: if a sheet gives twice as much, for weights with 2:4 sparsity, its figure is halved. Floating-point rates in 16 and 8 bits
are for float32 accumulation, which inference uses; on GeForce cards they are half of the sheet's figure for float16 accumulation.
Integer rates are those of tensor cores, so a V100 has none. Links count both directions together, as data sheets do.
Memory is the data sheet's number times 10^9 bytes; the driver may report a little more.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from minllm.errors import InvalidOptionError

MEASUREMENTS = Path(__file__).parent.parent / "data" / "measurements.json"


@dataclass(frozen=True)
class Gpu:
    """The limits of one GPU; a rate is None if the GPU lacks the instructions."""

    short_name: str  # the name that users type
    memory_gb: float
    bandwidth_tb_s: float
    fp32_tflops: float  # without tensor cores
    tf32_tflops: float | None
    fp16_tflops: float
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    multiprocessors: int  # SMs; compute units on AMD
    l2_mb: float
    link_gb_s: float  # NVLink or Infinity Fabric, or else PCIe
    link: str
    source: str
    measured_copy_tb_s: float | None = None
    measured_bf16_tflops: float | None = None

    @property
    def ceiling_tb_s(self) -> float:
        """The bandwidth in TB/s that kernels are compared with: that of the measured copy, or else the data sheet's."""
        return self.measured_copy_tb_s or self.bandwidth_tb_s

    @property
    def ceiling_source(self) -> str:
        """The source of `ceiling_tb_s`: "measured copy" or "data sheet"."""
        return "measured copy" if self.measured_copy_tb_s else "data sheet"


PCIE_3, PCIE_4, PCIE_5 = (32, "PCIe 3"), (64, "PCIe 4"), (128, "PCIe 5")
NVLINK_2, NVLINK_3, NVLINK_4, NVLINK_5 = (300, "NVLink 2"), (600, "NVLink 3"), (900, "NVLink 4"), (1800, "NVLink 5")
NVLINK_BRIDGE, NVLINK_H100_BRIDGE = (112.5, "NVLink bridge"), (600, "NVLink bridge")

TURING = "NVIDIA T4 data sheet; Turing architecture whitepaper"
VOLTA = "NVIDIA V100 data sheet; Volta architecture whitepaper"
A100 = "NVIDIA A100 data sheet; Ampere (GA100) architecture whitepaper"
GA102 = "NVIDIA Ampere GA102 architecture whitepaper, appendix"
ADA = "NVIDIA Ada architecture whitepaper, appendix"
HOPPER = "NVIDIA H100 data sheet; Hopper architecture whitepaper"
RTX_BLACKWELL = "NVIDIA RTX Blackwell architecture whitepaper, appendix"

# Keys are the driver's names (cuDeviceGetName). Products with similar names differ in memory, so names must match exactly.
#   short name, memory GB, TB/s, then TFLOP/s in fp32, tf32, fp16, bf16, fp8, int8; SMs, L2 MB, link
GPUS: dict[str, Gpu] = {
    # The B200's sheet says 8.0 TB/s; the B200s of HGX boards report a bus of 7,680 bits at 4 GHz, which is 7.7 TB/s.
    "NVIDIA B200": Gpu("b200", 180, 8.0, 80, 1100, 2250, 2250, 4500, 4500, 148, 126, *NVLINK_5, "NVIDIA HGX B200 data sheet"),
    "NVIDIA H200": Gpu("h200", 141, 4.8, 67, 494.5, 989, 989, 1979, 1979, 132, 50, *NVLINK_4, "NVIDIA H200 data sheet"),
    "NVIDIA H100 80GB HBM3": Gpu("h100-sxm", 80, 3.35, 67, 494.5, 989, 989, 1979, 1979, 132, 50, *NVLINK_4, HOPPER),
    "NVIDIA H100 NVL": Gpu("h100-nvl", 94, 3.9, 60, 417.5, 835.5, 835.5, 1670.5, 1670.5, 132, 50, *NVLINK_H100_BRIDGE, HOPPER),
    "NVIDIA H100 PCIe": Gpu("h100-pcie", 80, 2.0, 51, 378, 756, 756, 1513, 1513, 114, 50, *NVLINK_H100_BRIDGE, HOPPER),
    "NVIDIA A100-SXM4-80GB": Gpu("a100-80gb", 80, 2.039, 19.5, 156, 312, 312, None, 624, 108, 40, *NVLINK_3, A100),
    "NVIDIA A100 80GB PCIe": Gpu("a100-80gb-pcie", 80, 1.935, 19.5, 156, 312, 312, None, 624, 108, 40, *NVLINK_3, A100),
    "NVIDIA A100-SXM4-40GB": Gpu("a100-40gb", 40, 1.555, 19.5, 156, 312, 312, None, 624, 108, 40, *NVLINK_3, A100),
    "NVIDIA A100-PCIE-40GB": Gpu("a100-40gb-pcie", 40, 1.555, 19.5, 156, 312, 312, None, 624, 108, 40, *NVLINK_3, A100),
    "NVIDIA L40S": Gpu("l40s", 48, 0.864, 91.6, 183, 362, 362, 733, 733, 142, 96, *PCIE_4, "NVIDIA L40S data sheet"),
    "NVIDIA L4": Gpu("l4", 24, 0.300, 30.3, 60, 121, 121, 242.5, 242.5, 58, 48, *PCIE_4, "NVIDIA L4 data sheet"),
    "NVIDIA A10": Gpu("a10", 24, 0.600, 31.2, 62.5, 125, 125, None, 250, 72, 6, *PCIE_4, "NVIDIA A10 data sheet"),
    "NVIDIA RTX A6000": Gpu("a6000", 48, 0.768, 38.7, 77.4, 154.8, 154.8, None, 309.7, 84, 6, *NVLINK_BRIDGE, GA102),
    "NVIDIA GeForce RTX 5090": Gpu("rtx-5090", 32, 1.792, 104.8, 104.8, 209.5, 209.5, 419, 838, 170, 96, *PCIE_5, RTX_BLACKWELL),
    "NVIDIA GeForce RTX 5080": Gpu("rtx-5080", 16, 0.960, 56.3, 56.3, 112.6, 112.6, 225.1, 450.2, 84, 64, *PCIE_5, RTX_BLACKWELL),
    "NVIDIA GeForce RTX 4090": Gpu("rtx-4090", 24, 1.008, 82.6, 82.6, 165.2, 165.2, 330.3, 660.6, 128, 72, *PCIE_4, ADA),
    "NVIDIA GeForce RTX 4080": Gpu("rtx-4080", 16, 0.7168, 48.7, 48.7, 97.5, 97.5, 194.9, 389.9, 76, 64, *PCIE_4, ADA),
    "NVIDIA GeForce RTX 3090 Ti": Gpu("rtx-3090-ti", 24, 1.008, 40, 40, 80, 80, None, 320, 84, 6, *NVLINK_BRIDGE, GA102),
    "NVIDIA GeForce RTX 3090": Gpu("rtx-3090", 24, 0.936, 35.6, 35.6, 71, 71, None, 284, 82, 6, *NVLINK_BRIDGE, GA102),
    "Tesla T4": Gpu("t4", 16, 0.320, 8.1, None, 65, None, None, 130, 40, 4, *PCIE_3, TURING),
    "Tesla V100-SXM2-32GB": Gpu("v100-32gb", 32, 0.900, 15.7, None, 125, None, None, None, 80, 6, *NVLINK_2, VOLTA),
    "Tesla V100-SXM2-16GB": Gpu("v100-16gb", 16, 0.900, 15.7, None, 125, None, None, None, 80, 6, *NVLINK_2, VOLTA),
    "Tesla V100-PCIE-32GB": Gpu("v100-32gb-pcie", 32, 0.900, 14, None, 112, None, None, None, 80, 6, *PCIE_3, VOLTA),
    "Tesla V100-PCIE-16GB": Gpu("v100-16gb-pcie", 16, 0.900, 14, None, 112, None, None, None, 80, 6, *PCIE_3, VOLTA),
    "AMD Instinct MI300X": Gpu(
        "mi300x", 192, 5.3, 163.4, 653.7, 1307.4, 1307.4, 2614.9, 2614.9, 304, 32, 896, "Infinity Fabric", "AMD Instinct MI300X data sheet"
    ),
}
ALIASES = {"h100": "h100-sxm", "a100": "a100-80gb", "v100": "v100-32gb", "a100-pcie": "a100-80gb-pcie", "v100-pcie": "v100-32gb-pcie"}


def read_measurements() -> dict[str, dict]:
    """{driver's name of a GPU: its measurements}; planning/measured.py describes them.

    `tools/write_hardware_json.py` writes the file from docs/results.
    """
    return json.loads(MEASUREMENTS.read_text(encoding="utf-8"))


for _name, _measured in read_measurements().items():
    if _name in GPUS:
        GPUS[_name] = replace(GPUS[_name], measured_copy_tb_s=_measured["copy_tb_s"], measured_bf16_tflops=_measured["bf16_tflops"])


def find_gpu(device_name: str) -> Gpu | None:
    """The Gpu with the driver's name `device_name`, or None if GPUS lacks it."""
    return GPUS.get(device_name.strip())


def gpu_named(name: str) -> tuple[str, Gpu]:
    """(driver's name, Gpu) for a short name such as "RTX 4090" or "4090", or for the driver's name.

    Raises InvalidOptionError, which lists all names, if there is none.
    """

    def plain(text: str) -> str:
        return "".join(filter(str.isalnum, text.lower())).removeprefix("nvidia").removeprefix("geforce").removeprefix("rtx")

    wanted = plain(ALIASES.get("-".join(name.lower().split()), name))
    for full_name, gpu in GPUS.items():
        if wanted and wanted in (plain(full_name), plain(gpu.short_name)):
            return full_name, gpu
    names = ", ".join([*ALIASES, *(gpu.short_name for gpu in GPUS.values())])
    raise InvalidOptionError(f"There is no data sheet of a GPU {name!r} here. Known are {names}; minllm/machine/hardware.py takes more.")
