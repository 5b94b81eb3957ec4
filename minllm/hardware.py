"""Data sheets of common NVIDIA GPUs, and what was measured of them: the limits that every speed here is compared with.

A decode step reads every weight once and does two operations a weight, so its limit is memory bandwidth; a long prefill is limited by
the tensor cores. The data sheet's bandwidth is never reached in full. Where the rate of a large copy was measured (bytes read plus bytes
written), that is the honest ceiling, and shares are given of it.

Sources: NVIDIA's data sheets and architecture whitepapers. Tensor-core rates are dense bfloat16 with float32 accumulation (float16 for
Turing, which has no bfloat16); data sheets often print twice that, for 2:4 sparsity.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU's limits. Units: GB and TB are powers of ten, as in the data sheets."""

    memory_gb: float
    bandwidth_tb_s: float
    bf16_tflops: float
    measured_copy_tb_s: float | None = None
    measured_bf16_tflops: float | None = None

    @property
    def ceiling_tb_s(self) -> float:
        """The bandwidth that shares are given of: the measured copy, or else the data sheet's figure."""
        return self.measured_copy_tb_s or self.bandwidth_tb_s

    @property
    def ceiling_source(self) -> str:
        """What `ceiling_tb_s` is: "measured copy" or "data sheet"."""
        return "measured copy" if self.measured_copy_tb_s else "data sheet"


# By the name that the driver gives (cuDeviceGetName): parts with like names differ in memory, so a name has to match whole.
GPUS: dict[str, Gpu] = {
    "NVIDIA B200": Gpu(memory_gb=180, bandwidth_tb_s=8.0, bf16_tflops=2250),
    "NVIDIA H200": Gpu(memory_gb=141, bandwidth_tb_s=4.8, bf16_tflops=989, measured_copy_tb_s=4.25, measured_bf16_tflops=781),
    "NVIDIA H100 80GB HBM3": Gpu(memory_gb=80, bandwidth_tb_s=3.35, bf16_tflops=989),
    "NVIDIA H100 NVL": Gpu(memory_gb=94, bandwidth_tb_s=3.9, bf16_tflops=835),
    "NVIDIA H100 PCIe": Gpu(memory_gb=80, bandwidth_tb_s=2.0, bf16_tflops=756),
    "NVIDIA A100-SXM4-80GB": Gpu(memory_gb=80, bandwidth_tb_s=2.039, bf16_tflops=312),
    "NVIDIA A100 80GB PCIe": Gpu(memory_gb=80, bandwidth_tb_s=1.935, bf16_tflops=312),
    "NVIDIA A100-SXM4-40GB": Gpu(memory_gb=40, bandwidth_tb_s=1.555, bf16_tflops=312),
    "NVIDIA A100-PCIE-40GB": Gpu(memory_gb=40, bandwidth_tb_s=1.555, bf16_tflops=312),
    "NVIDIA L40S": Gpu(memory_gb=48, bandwidth_tb_s=0.864, bf16_tflops=362),
    "NVIDIA L4": Gpu(memory_gb=24, bandwidth_tb_s=0.300, bf16_tflops=121),
    "NVIDIA A10": Gpu(memory_gb=24, bandwidth_tb_s=0.600, bf16_tflops=125),
    "NVIDIA RTX A6000": Gpu(memory_gb=48, bandwidth_tb_s=0.768, bf16_tflops=155),
    "NVIDIA GeForce RTX 5090": Gpu(memory_gb=32, bandwidth_tb_s=1.792, bf16_tflops=209),
    "NVIDIA GeForce RTX 4090": Gpu(memory_gb=24, bandwidth_tb_s=1.008, bf16_tflops=165),
    "NVIDIA GeForce RTX 3090": Gpu(memory_gb=24, bandwidth_tb_s=0.936, bf16_tflops=71),
    "Tesla T4": Gpu(memory_gb=16, bandwidth_tb_s=0.320, bf16_tflops=65),
}


def find_gpu(device_name: str) -> Gpu | None:
    """The limits of the GPU that the driver calls `device_name`, or None where we have no data sheet of it."""
    return GPUS.get(device_name.strip())
