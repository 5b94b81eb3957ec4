"""Memory that ranks share, and its words that they read and write while kernels run, on a driver that is made up."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minllm.runtime import exported_memory
from minllm.runtime.device import assume
from minllm.runtime.exported_memory import ExportedMemory, array_at, read_word, write_now
from tests.runtime.h200 import H200


@pytest.fixture
def made(monkeypatch):
    """The streams that the made-up driver creates; its GPU's memory is this process's."""
    driver = pytest.importorskip("cuda.bindings.driver")
    streams = []

    def create(flags):
        streams.append(flags)
        return 0, len(streams)

    def fill(pointer, number, count, stream):
        ctypes.c_uint32.from_address(pointer).value = number
        return (0,)

    def copy(to, pointer, nbytes, stream):
        ctypes.memmove(to, pointer, nbytes)
        return (0,)

    made_up = dict(cuStreamCreate=create, cuMemsetD32Async=fill, cuMemcpyDtoHAsync=copy, cuStreamSynchronize=lambda stream: (0,))
    for name, function in made_up.items():
        monkeypatch.setattr(driver, name, function)
    exported_memory._non_blocking_stream.cache_clear()
    with assume(H200):
        yield streams
    exported_memory._non_blocking_stream.cache_clear()


def test_faults_are_noted_and_read_on_one_stream_whichever_the_thread(made):
    word = np.zeros(1, np.uint32)
    fault = array_at(word.ctypes.data, 1, np.uint32, word)
    with ThreadPoolExecutor(1) as thread:
        for number in range(3):
            write_now(fault, number)
            assert thread.submit(read_word, fault).result() == read_word(fault) == number
    assert len(made) == 1


def test_memory_is_zeroed_before_peers_can_map_it(made, monkeypatch):
    """The driver fills memory later than it returns; zeros that come after a peer's flag would erase the flag."""
    driver, calls = pytest.importorskip("cuda.bindings.driver"), []

    def noted(name, *result):
        monkeypatch.setattr(driver, name, lambda *arguments: calls.append((name, arguments[-1])) or (0, *result))

    noted("cuMemAlloc", 1 << 30)
    for name in ("cuMemsetD8", "cuMemsetD8Async", "cuStreamSynchronize", "cuMemFree"):
        noted(name)
    noted("cuIpcGetMemHandle", driver.CUipcMemHandle())
    ExportedMemory(5).close()
    assert calls[1:-2] == [("cuMemsetD8Async", 1), ("cuStreamSynchronize", 1)]
