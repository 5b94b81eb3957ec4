"""Pages that processes share, on a driver that is made up: what is undone if a peer's page cannot be mapped or accessed."""

import pytest

from minllm.errors import DeviceError, KernelArgumentError
from minllm.runtime import cuda_pages
from minllm.runtime.device import assume
from minllm.runtime.shared_pages import SharedPages
from tests.runtime.h200 import H200

PAGE, START = 2 << 20, 1 << 40


@pytest.fixture
def calls(monkeypatch):
    """What the made-up driver is asked for, until it fails in the call `calls.fails`, a (name, how many of these succeed)."""
    driver = pytest.importorskip("cuda.bindings.driver")
    made, counts = Calls(), {}

    def make(name, *result):
        def call(*arguments):
            counts[name] = counts.get(name, 0) + 1
            if made.fails is not None and made.fails == (name, counts[name] - 1):
                return driver.CUresult.CUDA_ERROR_INVALID_DEVICE, *([None] * len(result))
            made.append((name, *[one for one in arguments if isinstance(one, int)]))
            return driver.CUresult.CUDA_SUCCESS, *result

        monkeypatch.setattr(driver, name, call)

    make("cuMemGetAllocationGranularity", PAGE)
    make("cuMemAddressReserve", START)
    for name in ("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree"):
        make(name)
    monkeypatch.setattr(cuda_pages, "CudaMemory", lambda: None)
    with assume(H200):
        yield made


class Calls(list):
    """(name, numbers among the arguments) of every call that succeeds."""

    fails = None


def test_pages_lie_side_by_side_until_they_are_taken_apart(calls):
    pages = SharedPages(2 * PAGE)
    array = pages.side_by_side(["own", "theirs", "own"])
    assert (array.pointer, array.nbytes) == (START, 6 * PAGE)
    pages.taken_apart(array)
    assert calls[1:] == [
        ("cuMemAddressReserve", 6 * PAGE, PAGE, 0, 0),
        *[("cuMemMap", START + number * 2 * PAGE, 2 * PAGE, 0, 0) for number in range(3)],
        ("cuMemSetAccess", START, 6 * PAGE, 1),
        ("cuMemUnmap", START, 6 * PAGE),
        ("cuMemAddressFree", START, 6 * PAGE),
    ]


@pytest.mark.parametrize(("fails", "mapped"), [(("cuMemMap", 0), 0), (("cuMemMap", 2), 2), (("cuMemSetAccess", 0), 3)])
def test_a_page_that_cannot_be_mapped_leaves_nothing_mapped(calls, fails, mapped):
    pages, calls.fails = SharedPages(PAGE), fails
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        pages.side_by_side(["own", "theirs", "own"])
    assert calls[-2 if mapped else -1 :] == [("cuMemUnmap", START, mapped * PAGE)] * bool(mapped) + [("cuMemAddressFree", START, 3 * PAGE)]


def test_groups_are_whole_pages_of_the_driver(calls):
    with pytest.raises(KernelArgumentError, match=f"multiples of {PAGE} bytes"):
        SharedPages(PAGE + 4096)
