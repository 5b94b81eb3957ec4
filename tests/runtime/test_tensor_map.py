"""What the driver is told of an array and of a launch with clusters: no GPU needed to say it."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver

from minllm.errors import KernelArgumentError
from minllm.runtime import tensor_map as maps
from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import driver_configuration
from minllm.runtime.parameters import parameter
from minllm.runtime.tensor_map import DESCRIPTOR_BYTES, tensor_map

DATA_TYPE, SWIZZLE, FILL = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle, driver.CUtensorMapFloatOOBfill


@pytest.fixture
def told(monkeypatch):
    """The fields that the driver was given, and what was copied to the GPU."""
    seen = SimpleNamespace(encoded=0)

    def encode(*fields):
        seen.fields, seen.encoded = fields, seen.encoded + 1
        return driver.CUresult.CUDA_SUCCESS, driver.CUtensorMap()

    def keep(words):
        seen.copied = words
        return 0x7000

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encode)
    monkeypatch.setattr(maps, "keep", keep)
    monkeypatch.setattr(maps, "DESCRIPTORS", {})
    return seen


def numbers(values):
    return [int(value) for value in values]


def test_the_driver_counts_axes_from_the_fastest(told):
    array = DeviceArray(0x1000, (7, 5, 64), ml_dtypes.bfloat16, None, None)
    made = tensor_map(array, (2, 3, 32), swizzle=64, fill="nan")
    kind, rank, address, extents, strides, box, steps, _, swizzle, _, fill = told.fields
    assert (kind, rank, address) == (DATA_TYPE.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, 0x1000)
    assert (numbers(extents), numbers(strides), numbers(box), numbers(steps)) == ([64, 5, 7], [128, 640], [32, 3, 2], [1, 1, 1])
    assert swizzle == SWIZZLE.CU_TENSOR_MAP_SWIZZLE_64B and fill == FILL.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
    assert told.copied.nbytes == DESCRIPTOR_BYTES and made.box_bytes == 2 * 3 * 64
    assert parameter(made)[1] == (0x7000).to_bytes(8, "little")


def test_the_driver_is_told_of_gaps(told):
    array = DeviceArray(0x1000, (7, 5, 64), ml_dtypes.bfloat16, None, None, strides=(5 * 384, 384, 2))
    tensor_map(array, (2, 3, 32), swizzle=64)
    assert (numbers(told.fields[3]), numbers(told.fields[4])) == ([64, 5, 7], [384, 5 * 384])
    tensor_map(DeviceArray(0x1000, (7, 5, 64), ml_dtypes.bfloat16, None, None), (2, 3, 32), swizzle=64)
    assert told.encoded == 2  # another layout, another descriptor
    with pytest.raises(KernelArgumentError, match="pad them to a multiple of 16"):
        tensor_map(DeviceArray(0x1000, (7, 64), ml_dtypes.bfloat16, None, None, strides=(136, 2)), (2, 32), swizzle=64)
    with pytest.raises(KernelArgumentError, match="not side by side"):
        tensor_map(DeviceArray(0x1000, (7, 64), ml_dtypes.bfloat16, None, None, strides=(256, 4)), (2, 32), swizzle=64)


def test_a_descriptor_is_made_once_for_all_arrays_that_agree(told):
    def array(shape=(64, 64), pointer=0x1000, dtype=np.float16):
        return DeviceArray(pointer, shape, dtype, None, None)

    for _ in range(2):
        assert tensor_map(array(), (8, 64)).descriptor == 0x7000
    assert told.encoded == 1
    others = [(array((32, 64)), (8, 64)), (array(pointer=0x2000), (8, 64)), (array(dtype=ml_dtypes.bfloat16), (8, 64)), (array(), (16, 64))]
    for i, (other, box) in enumerate(others):
        tensor_map(other, box)
        assert told.encoded == 2 + i
    with pytest.raises(KernelArgumentError, match="does not start at a multiple of 16"):
        tensor_map(array(pointer=0x1004), (8, 64))


def test_descriptors_are_copied_to_places_of_their_own(monkeypatch):
    copied, success = [], driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(maps, "free_places", [])
    monkeypatch.setattr(maps, "copy_stream", lambda: 5)
    monkeypatch.setattr(driver, "cuMemAlloc", lambda size: (success, 0x10000 * (1 + len(copied))))
    monkeypatch.setattr(driver, "cuMemcpyHtoDAsync", lambda place, _, size, stream: (success, copied.append((place, size, stream)))[:1])
    monkeypatch.setattr(driver, "cuStreamSynchronize", lambda stream: (success,))
    places = [maps.keep(np.zeros(16, np.uint64)) for _ in range(maps.PAGE_BYTES // DESCRIPTOR_BYTES + 1)]
    assert len(set(places)) == len(places) and all(place % DESCRIPTOR_BYTES == 0 for place in places)
    assert copied == [(place, DESCRIPTOR_BYTES, 5) for place in places]


def test_a_launch_with_clusters_counts_blocks():
    configuration = driver_configuration((4, 6, 1), (128, 1, 1), 1000, 7, (2, 3, 1), False)
    assert (configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ) == (4, 6, 1)
    assert (configuration.blockDimX, configuration.sharedMemBytes, int(configuration.hStream)) == (128, 1000, 7)
    size = configuration.attrs[0].value.clusterDim
    assert (configuration.numAttrs, size.x, size.y, size.z) == (1, 2, 3, 1)


def test_a_dependent_launch_says_so():
    configuration = driver_configuration((4, 6, 1), (128, 1, 1), 0, 7, None, True)
    assert configuration.numAttrs == 1 and configuration.attrs[0].value.programmaticStreamSerializationAllowed == 1
