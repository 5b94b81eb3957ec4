"""Uploads through page-locked buffers, with a GPU whose copies happen as late as they may."""

import ml_dtypes
import numpy as np
import pytest

from minllm.runtime import upload
from minllm.runtime.memory import DeviceMemory
from minllm.runtime.upload import Uploader, pieces
from tests.runtime.host_memory import HostMemory

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.fixture
def memory(monkeypatch):
    """Device memory in the host's; a copy reads its buffer when its event is waited for."""
    monkeypatch.setattr(upload, "BUFFER_BYTES", 64)
    monkeypatch.setattr(upload, "pinned_empty", lambda shape, dtype: np.full(shape, 255, dtype))

    class Event:
        def __init__(self, array, staged):
            assert array.shape == staged.shape and array.dtype == staged.dtype
            self.copy = lambda: array.copy_from_host(staged)

        def sync(self):
            self.copy()

    monkeypatch.setattr(upload, "write_later", lambda array, staged, stream: Event(array, staged))
    return DeviceMemory(HostMemory())


def uploaded(memory, host, dtype):
    array = memory.empty(host.shape, dtype)
    with Uploader(None) as uploader:
        uploader.copy(array, host)
    return array.copy_to_host()


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 15), (1,), (129,), (0, 4), (2, 3, 5), (33, 8)])
def test_every_shape_arrives_rounded(memory, stored, dtype, shape):
    host = np.random.default_rng(0).standard_normal(shape).astype(stored)
    np.testing.assert_array_equal(uploaded(memory, host, dtype), host.astype(dtype))


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("shape", [(7, 15), (200, 3), (3, 200)])  # the rows of the transposed matrix fit a buffer, or do not
def test_views_with_gaps(memory, stored, shape):
    whole = np.random.default_rng(0).standard_normal(shape).astype(stored)
    for host in (whole.T, whole[:, 1:], whole[1:]):
        np.testing.assert_array_equal(uploaded(memory, host, ml_dtypes.bfloat16), host.astype(ml_dtypes.bfloat16))


def test_several_arrays_take_turns_with_the_buffers(memory):
    random = np.random.default_rng(0)
    hosts = [random.standard_normal(size).astype(np.float32) for size in (3, 40, 16, 1, 100)]
    arrays = [memory.empty(host.shape, np.float32) for host in hosts]
    with Uploader(None) as uploader:
        for array, host in zip(arrays, hosts, strict=True):
            uploader.copy(array, host)
    for array, host in zip(arrays, hosts, strict=True):
        np.testing.assert_array_equal(array.copy_to_host(), host)


def test_pieces_are_views():
    whole = np.arange(60).reshape(12, 5)
    for host in (whole, whole.T):
        assert all(np.shares_memory(piece, whole) and piece.size <= 24 for piece in pieces(host, 24))
        assert sum(piece.size for piece in pieces(host, 24)) == whole.size
