"""The copy ceiling against a driver that takes exactly as long as the test says: units, the warm-up left out, and nothing leaked."""

import types

import cuda.bindings
import pytest

from minllm.bench import ceilings
from minllm.errors import DeviceError
from minllm.runtime import device


class FakeDriver(types.SimpleNamespace):
    """Copies at 1 TB/s in each direction after three slow ones; counts what is allocated and what is given back."""

    def __init__(self, free):
        super().__init__(free=free, held=set(), events=[], clock=0.0, sizes=[], copies=0, filled=0)

    def cuMemGetInfo(self):
        return 0, self.free, 2 * self.free

    def cuMemAlloc(self, size):
        self.sizes.append(size)
        pointer = 4096 * len(self.sizes)
        self.held.add(pointer)
        return 0, pointer

    def cuMemFree(self, pointer):
        self.held.remove(pointer)
        return (0,)

    def cuMemcpyHtoD(self, target, source, count):
        self.filled += count
        return (0,)

    def cuEventCreate(self, flags):
        self.events.append(None)
        return 0, len(self.events) - 1

    def cuEventRecord(self, event, stream):
        self.events[event] = self.clock
        return (0,)

    def cuMemcpyDtoDAsync(self, target, source, count, stream):
        self.copies += 1
        self.clock += 1e3 * count / 1e12 * (10 if self.copies <= 3 else 1)  # milliseconds
        return (0,)

    def cuCtxSynchronize(self):
        return (0,)

    def cuEventElapsedTime(self, start, end):
        return 0, self.events[end] - self.events[start]

    def cuEventDestroy(self, event):
        return (0,)


def with_driver(monkeypatch, fake):
    monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
    monkeypatch.setattr(device, "current_device", lambda: None)


def test_both_directions_count_and_the_warm_up_does_not(monkeypatch):
    fake = FakeDriver(free=2**36)
    with_driver(monkeypatch, fake)
    assert ceilings.copy_tb_s(most_bytes=2**20, repeats=5) == pytest.approx(2.0)
    assert fake.sizes == [2**20, 2**20] and fake.filled == 2**20 and not fake.held


def test_a_small_gpu_copies_what_it_has_room_for(monkeypatch):
    fake = FakeDriver(free=10**6)
    with_driver(monkeypatch, fake)
    assert ceilings.copy_tb_s(most_bytes=2**30, repeats=2) == pytest.approx(2.0)
    assert fake.sizes[0] <= 250_000 and fake.sizes[0] % 4096 == 0


def test_a_driver_that_refuses_is_an_error_and_leaks_nothing(monkeypatch):
    fake = FakeDriver(free=2**36)
    fake.cuEventRecord = lambda event, stream: (types.SimpleNamespace(name="CUDA_ERROR_LAUNCH_FAILED"),)
    with_driver(monkeypatch, fake)
    with pytest.raises(DeviceError, match="CUDA_ERROR_LAUNCH_FAILED"):
        ceilings.copy_tb_s(most_bytes=2**20, repeats=2)
    assert not fake.held
