"""Tensor maps describe an array to TMA (the tensor memory accelerator).

    weight_map = tensor_map(weight, box=(256, 64))          # boxes of 256 rows of 64 columns
    matmul_kernel[grid, block, None, shared_bytes](weight_map, ...)

The map of a NumPy array is for the simulator; the map of a DeviceArray has the driver's 128-byte descriptor in GPU memory. A kernel takes
either as an argument and passes it to the functions `ptx.cp_async_bulk_tensor_*`. A descriptor depends only on address, shape, dtype, box,
swizzle, fill and promotion, so all arrays that agree in these share one descriptor, which is kept in a dictionary. It lives until the
process ends, because graphs may hold its address, and its memory is never reused for another descriptor.

The elements of the array's last axis are adjacent, and the box is the shape of a tile, in the array's order of axes. A tile in
shared memory is C-contiguous except for the swizzle: with swizzle 128 its 16-byte chunks are permuted within 1024 bytes to
chunk ^ (line % 8), with lines of 128 bytes, so that reading a column of chunks has no bank conflicts; 64 and 32 permute fewer chunks. A
load fills elements outside the array with zeros (or NaN); a store skips them. CUDA driver API, "cuTensorMapEncodeTiled"; PTX, "Tensors".
"""

import functools
import math
import struct

import ml_dtypes
import numpy as np

from minllm.errors import DeviceError, KernelArgumentError
from minllm.machine.numba_cuda import types
from minllm.runtime import device
from minllm.runtime.device import check_driver

DESCRIPTOR_BYTES = 128
NO_DESCRIPTOR = 0  # the address in the maps of a dry run, which launches no kernels
PAGE_BYTES = 1 << 16  # GPU memory per allocation: 512 descriptors
LARGEST_BOX = 256  # elements along one axis
DATA_TYPES = {
    np.dtype(ml_dtypes.bfloat16): "BFLOAT16",
    np.dtype(np.float16): "FLOAT16",
    np.dtype(np.float32): "FLOAT32",
    np.dtype(np.float64): "FLOAT64",
    np.dtype(np.int32): "INT32",
    np.dtype(np.uint32): "UINT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.uint16): "UINT16",
    np.dtype(np.int16): "UINT16",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int8): "UINT8",
    np.dtype(ml_dtypes.float8_e4m3fn): "UINT8",
    np.dtype(ml_dtypes.float8_e5m2): "UINT8",
}
DATA_TYPE_NAMES = ", ".join(map(str, DATA_TYPES))
SWIZZLES = {0: "SWIZZLE_NONE", 32: "SWIZZLE_32B", 64: "SWIZZLE_64B", 128: "SWIZZLE_128B"}
FILLS = {"zeros": "FLOAT_OOB_FILL_NONE", "nan": "FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA"}

DESCRIPTORS = {}  # (address, shape, strides, dtype, box, swizzle, fill, promotion) -> address of the descriptor
free_places = []  # addresses of allocated 128-byte slots that have never held a descriptor


class TensorMap:
    """An array and its tile shape (box). descriptor: the GPU address of the driver's descriptor, or None."""

    numba_type = types.uint64  # the type of a kernel's parameter: the descriptor's address

    def __init__(self, array, box, swizzle, fill, descriptor=None):
        self.array, self.box, self.swizzle, self.fill, self.descriptor = array, box, swizzle, fill, descriptor

    def __repr__(self):
        return f"TensorMap(array of {self.array.shape} {self.array.dtype}, box={self.box}, swizzle={self.swizzle}, fill={self.fill!r})"

    def with_array(self, change):
        """The same map for `change(array)`: the simulator replaces a NumPy array by a checked array or a copy."""
        return TensorMap(change(self.array), self.box, self.swizzle, self.fill, self.descriptor)

    @property
    def box_bytes(self):
        """Bytes of a tile, which is also the transaction count of its copy on an mbarrier."""
        return math.prod(self.box) * self.array.dtype.itemsize

    @property
    def kernel_parameter(self):
        """The launch parameter: the descriptor's address (see parameters.py)."""
        if self.descriptor is None:
            raise KernelArgumentError("a GPU was given the tensor map of a NumPy array: copy the array there, then make its map")
        return TensorMap, struct.pack("<Q", self.descriptor)


def tensor_map(array, box, swizzle=128, fill="zeros", promotion=256):
    """The TensorMap of a NumPy array or DeviceArray, 1 to 5 axes, in tiles of `box`.

    swizzle: 0, 32, 64 or 128; unless it is 0, it is the length of the box's last axis in bytes. fill: the value of elements outside the
    array, "zeros" or "nan". promotion: 128 or 256, the fewest bytes that L2 fetches from HBM. Raises KernelArgumentError if TMA does not
    support the combination.
    """
    box = tuple(int(extent) for extent in box)
    if isinstance(array, np.ndarray):
        check_map(array.shape, array.strides, array.dtype, array.ctypes.data % 16, box, swizzle, fill)
        return TensorMap(array, box, swizzle, fill)
    if device.assumed is not None:  # a dry run
        check_map(array.shape, array.strides, array.dtype, array.pointer % 16, box, swizzle, fill)
        return TensorMap(array, box, swizzle, fill, NO_DESCRIPTOR)
    key = array.pointer, array.shape, array.strides, array.dtype, box, swizzle, fill, promotion
    descriptor = DESCRIPTORS.get(key)
    if descriptor is None:
        check_map(array.shape, array.strides, array.dtype, array.pointer % 16, box, swizzle, fill)
        descriptor = DESCRIPTORS[key] = keep(encode(array, box, swizzle, fill, promotion))
    return TensorMap(array, box, swizzle, fill, descriptor)


@functools.lru_cache(4096)
def check_map(shape, strides, dtype, misaligned, box, swizzle, fill):
    """Raise KernelArgumentError unless TMA supports this combination; misaligned: the array's address modulo 16."""

    def check(condition, message):
        if not condition:
            raise KernelArgumentError(f"tensor map of {shape} {dtype} in boxes of {box}: {message}")

    inner = box[-1] * dtype.itemsize if box else 0
    check(dtype in DATA_TYPES, f"TMA copies {DATA_TYPE_NAMES}")
    check(1 <= len(shape) <= 5 and len(box) == len(shape), "array and box need the same number of axes, 1 to 5")
    check(all(1 <= extent <= LARGEST_BOX for extent in box), f"a box has 1 to {LARGEST_BOX} elements along each axis")
    check(all(1 <= extent <= 2**32 for extent in shape), "an array has 1 to 2**32 elements along each axis")
    check(swizzle in SWIZZLES, f"swizzle {swizzle} is none of {list(SWIZZLES)}")
    check(fill in FILLS, f"fill {fill!r} is none of {list(FILLS)}")
    can_be_nan = "FLOAT" in DATA_TYPES[dtype]  # fp8 is copied as UINT8
    check(fill == "zeros" or can_be_nan, "only floating-point elements of 16 bits or more can be filled with NaN")
    check(inner % 16 == 0, f"the box's last axis is {inner} bytes long; it must be a multiple of 16")
    check(not swizzle or inner == swizzle, f"with swizzle {swizzle} the box's last axis must be {swizzle} bytes long, not {inner}")
    check(strides[-1] == dtype.itemsize, f"the elements of the last axis lie {strides[-1]} bytes apart, not side by side")
    apart = [stride for stride in strides[:-1] if stride % 16]
    check(not apart, f"rows are {apart and apart[-1]} bytes long; pad them to a multiple of 16")
    check(not misaligned, "the array does not start at a multiple of 16 bytes")


def encode(array, box, swizzle, fill, promotion=256):
    """The driver's descriptor of an array on the GPU, as 16 words of 64 bits."""
    from cuda.bindings import driver

    def name(group, value):
        return getattr(getattr(driver, f"CUtensorMap{group}"), f"CU_TENSOR_MAP_{value}")

    shape = array.shape
    strides = array.strides[-2::-1] or [16]  # one axis has no stride, but the driver refuses an empty list
    fields = (
        name("DataType", f"DATA_TYPE_{DATA_TYPES[array.dtype]}"),
        len(shape),
        array.pointer,
        [driver.cuuint64_t(extent) for extent in reversed(shape)],  # the driver counts axes from the last one
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(extent) for extent in reversed(box)],
        [driver.cuuint32_t(1)] * len(shape),
        name("Interleave", "INTERLEAVE_NONE"),
        name("Swizzle", SWIZZLES[swizzle]),
        name("L2promotion", f"L2_PROMOTION_L2_{promotion}B"),
        name("FloatOOBfill", FILLS[fill]),
    )
    encoded = check_driver(driver.cuTensorMapEncodeTiled(*fields), "describe an array to the copy engine")
    words = np.array([int(word) for word in encoded.opaque], np.uint64)
    if words.nbytes != DESCRIPTOR_BYTES:
        raise DeviceError(f"the driver's tensor map has {words.nbytes} bytes, not {DESCRIPTOR_BYTES}")
    return words


def keep(words):
    """Copy a descriptor to GPU memory that is never freed; returns its address."""
    from cuda.bindings import driver

    if not free_places:
        page = int(check_driver(driver.cuMemAlloc(PAGE_BYTES), "allocate tensor maps"))
        free_places.extend(range(page, page + PAGE_BYTES, DESCRIPTOR_BYTES))
    address, stream = free_places.pop(), copy_stream()
    check_driver(driver.cuMemcpyHtoDAsync(address, words.ctypes.data, words.nbytes, stream), "copy a tensor map to the GPU")
    check_driver(driver.cuStreamSynchronize(stream), "wait for a tensor map's copy")
    return address


@functools.cache
def copy_stream():
    """The driver's handle of the stream that copies descriptors; it does not synchronise with other streams."""
    from cuda.bindings import driver

    return check_driver(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "create a stream")
