"""The GPU that dry runs assume in tests."""

from minllm.runtime.device import Device

H200 = Device(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, total_memory=140 << 30, l2_bytes=50 << 20)
