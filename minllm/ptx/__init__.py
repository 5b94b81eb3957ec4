"""The PTX instructions that Numba has no name for, one function each, with its emulation beside it.

Kernels import them from here: `from minllm import ptx`, or by name. Names follow the PTX ISA manual.
"""

from minllm.ptx.arithmetic import ex2, prmt, rcp, tanh_approx
from minllm.ptx.convert import float_as_uint, pack_bf16x2, pack_f16x2, uint_as_float, unpack_bf16x2, unpack_f16x2
from minllm.ptx.launch import griddepcontrol_launch_dependents, griddepcontrol_wait
from minllm.ptx.matrix import ldmatrix_x4, ldmatrix_x4_trans, mma_m16n8k16_bf16, mma_m16n8k16_f16
from minllm.ptx.memory import (
    cp_async_16,
    cp_async_commit_group,
    cp_async_wait_group_0,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
    load_128,
    load_128_streaming,
    load_float32,
    load_float32_streaming,
    shared_address,
    store_32,
    store_128,
)

__all__ = [
    "cp_async_16",
    "cp_async_commit_group",
    "cp_async_wait_group_0",
    "cp_async_wait_group_1",
    "cp_async_wait_group_2",
    "cp_async_wait_group_3",
    "ex2",
    "float_as_uint",
    "griddepcontrol_launch_dependents",
    "griddepcontrol_wait",
    "ldmatrix_x4",
    "ldmatrix_x4_trans",
    "load_128",
    "load_128_streaming",
    "load_float32",
    "load_float32_streaming",
    "mma_m16n8k16_bf16",
    "mma_m16n8k16_f16",
    "pack_bf16x2",
    "pack_f16x2",
    "prmt",
    "rcp",
    "shared_address",
    "store_32",
    "store_128",
    "tanh_approx",
    "uint_as_float",
    "unpack_bf16x2",
    "unpack_f16x2",
]
