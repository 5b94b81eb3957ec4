"""Pages behind reserved addresses: the rules, and any order of calls against a dictionary."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import DeviceError, OutOfMemoryError, VirtualMemoryError
from minllm.runtime.host_pages import GARBAGE, HostPages
from minllm.runtime.virtual_memory import PagePool, VirtualRange
from tests.runtime.guarded_pages import GuardedPages

PAGE = 64


@pytest.fixture
def backend():
    return GuardedPages(PAGE)


def test_a_range_is_rounded_up_to_pages(backend):
    memory = VirtualRange(PagePool(backend, 10), 3 * PAGE + 1)
    assert (memory.num_pages, memory.nbytes, memory.num_mapped) == (4, 4 * PAGE, 0)
    memory.map(1, 2)
    assert memory.is_mapped(1, 2) and not memory.is_mapped(0) and not memory.is_mapped(2, 2)


def test_an_array_reaches_over_all_pages(backend):
    memory = VirtualRange(PagePool(backend, 10), 4 * PAGE)
    memory.map(2)
    array = memory.array((4, PAGE // 4), np.float32)
    assert np.isnan(array[2]).all()  # whatever is in a new page, nobody may build on it
    array[2] = 7
    backend.check_untouched()
    with pytest.raises(VirtualMemoryError, match="does not fit"):
        memory.array((5, PAGE), np.uint8)


def test_pages_are_taken_away_only_when_nothing_runs(backend):
    memory = VirtualRange(PagePool(backend, 10), 4 * PAGE)
    memory.map(0, 2)
    memory.unmap(0, 2)
    assert backend.log == ["map", "map", "wait", "unmap"]


def test_mistakes_are_explained_and_change_nothing(backend):
    pool = PagePool(backend, 3)
    memory = VirtualRange(pool, 4 * PAGE)
    memory.map(1)
    for wrong, message in (
        (lambda: memory.map(1), "page 1 is mapped already"),
        (lambda: memory.map(0, 2), "page 1 is mapped already"),
        (lambda: memory.unmap(0, 2), "page 0 is not mapped"),
        (lambda: memory.map(3, 2), "pages 3 to 4 are not all in a range of 4 pages"),
        (lambda: memory.map(-1), "not all in a range"),
    ):
        with pytest.raises(VirtualMemoryError, match=message):
            wrong()
    other = VirtualRange(pool, 4 * PAGE)
    with pytest.raises(OutOfMemoryError, match="3 of at most 3"):
        other.map(0, 3)
    assert (pool.in_use, pool.left, memory.num_mapped, other.num_mapped) == (1, 2, 1, 0)
    other.map(2, 2)
    memory.close()
    memory.close()
    with pytest.raises(VirtualMemoryError, match="was closed"):
        memory.map(0)
    assert pool.in_use == 2 and other.is_mapped(2, 2)


def test_a_failing_driver_leaves_nothing_behind(backend):
    pool = PagePool(backend, 8)
    memory = VirtualRange(pool, 4 * PAGE)
    backend.map_fails_after = 2
    with pytest.raises(DeviceError, match="could not map"):
        memory.map(0, 4)
    assert (pool.in_use, memory.num_mapped, backend.mapped) == (0, 0, {})
    backend.map_fails_after = None
    memory.map(0, 4)


def test_a_machine_without_memory_is_explained():
    pool = PagePool(GuardedPages(PAGE, limit=2), 100)
    memory = VirtualRange(pool, 8 * PAGE)
    with pytest.raises(OutOfMemoryError, match="the machine gives no more"):
        memory.map(0, 3)
    assert pool.in_use == 0 and pool.trim() == 2 and pool.created == 0
    memory.map(0, 2)


def test_what_nobody_refers_to_gives_its_pages_back(only_new_objects, backend):
    pool = PagePool(backend, 10)
    memory = VirtualRange(pool, 4 * PAGE)
    memory.map(0, 4)
    memory = None
    gc.collect()
    assert pool.in_use == 0 and not backend.mapped
    pool = None
    gc.collect()
    assert backend.num_created == 0


def test_the_host_s_own_pages():
    pool = PagePool(HostPages(1 << 16), 4)
    memory = VirtualRange(pool, 1 << 32)
    memory.map(1, 2)
    array = memory.array((3 << 16,), np.uint8)
    assert (array[1 << 16 :] == GARBAGE).all()
    array[1 << 16 :] = 5
    memory.unmap(1)
    assert (array[2 << 16 :] == 5).all() and not array[1 << 16 : 2 << 16].any()  # the memory went back to the system


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("map", "map", "unmap", "write", "close", "trim")), st.integers(0, 1), st.integers(0, 5), st.integers(1, 4)),
    max_size=40,
)


@given(OPERATIONS, st.integers(1, 8), st.integers(1, 8))
def test_any_order_of_calls(operations, limit, machine_limit):
    backend = GuardedPages(PAGE, machine_limit)
    pool = PagePool(backend, limit)
    ranges = [VirtualRange(pool, 6 * PAGE) for _ in range(2)]
    arrays = [memory.array((6, PAGE), np.uint8) for memory in ranges]
    shadow = {}  # (range, page) -> what is in it
    for step, (name, which, first, count) in enumerate(operations):
        memory, pages = ranges[which], [(which, page) for page in range(first, first + count)]
        try:
            if name == "map":
                memory.map(first, count)
                assert not any(page in shadow for page in pages) and len(shadow) + count <= min(limit, machine_limit)
                shadow |= dict.fromkeys(pages, GARBAGE)
            elif name == "unmap":
                memory.unmap(first, count)
                for page in pages:
                    del shadow[page]
            elif name == "write" and (which, first) in shadow:
                arrays[which][first] = shadow[which, first] = step % 200
            elif name == "close":
                memory.close()
                shadow = {page: value for page, value in shadow.items() if page[0] != which}
                ranges[which] = memory = VirtualRange(pool, 6 * PAGE)
                arrays[which] = memory.array((6, PAGE), np.uint8)
            elif name == "trim":
                pool.trim()
                assert pool.created == pool.in_use
        except VirtualMemoryError:
            assert first + count > 6 or any((page in shadow) == (name == "map") for page in pages)
        except OutOfMemoryError:
            assert len(shadow) + count > min(limit, machine_limit)
        for (owner, page), value in shadow.items():
            assert (arrays[owner][page] == value).all()
        assert pool.in_use == len(shadow) == len(backend.mapped) and pool.created == backend.num_created <= min(limit, machine_limit)
        assert [memory.num_mapped for memory in ranges] == [sum(owner == which for owner, _ in shadow) for which in (0, 1)]
        backend.check_untouched()
    for memory in ranges:
        memory.close()
    pool.trim()
    assert backend.num_created == 0 and not backend.mapped and pool.created == 0
