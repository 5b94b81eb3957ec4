"""The queues between the pipeline's stages."""

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.engine.pipeline.bounded_queue import BoundedQueue
from minllm.engine.pipeline.distinct_queue import DistinctQueue

TIMEOUT = 20  # seconds


def run_in_thread(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


@settings(deadline=None, max_examples=50)
@given(limit=st.integers(1, 4), count=st.integers(0, 30), most=st.integers(1, 7))
def test_order_and_limit(limit, count, most):
    """Items come in order, and whoever is ahead by more than the limit waits."""
    queue, taken, ahead = BoundedQueue(limit), [], []

    def put():
        for item in range(count):
            queue.put(item)
            ahead.append(item - len(taken))

    thread = run_in_thread(put)
    while len(taken) < count:
        found = queue.take(most)
        assert len(found) <= most
        taken += found
    thread.join(TIMEOUT)
    assert taken == list(range(count)) and all(distance <= limit + most for distance in ahead)


def test_who_waits_is_told_in_order():
    queue, told = BoundedQueue(1), []
    assert queue.put_or_wait(0, lambda: told.append(0))
    assert not queue.put_or_wait(1, lambda: told.append(1)) and not queue.put_or_wait(2, lambda: told.append(2))
    assert queue.take(5) == [0] and told == [1]
    assert queue.take(5) == [1] and told == [1, 2]
    assert queue.take(5) == [2] and queue.take(5, wait=False) == []


def test_close_and_wake_end_all_waiting():
    queue = BoundedQueue(1)
    taker = run_in_thread(lambda: queue.take(1))
    queue.wake()
    taker.join(TIMEOUT)
    queue.put(0)
    putter = run_in_thread(lambda: queue.put(1))
    queue.close()
    putter.join(TIMEOUT)
    assert not taker.is_alive() and not putter.is_alive()
    queue.put(2)  # nobody waits any more
    assert queue.take(0) == []


def test_an_item_is_there_once():
    queue = DistinctQueue()
    queue.add([1, 2])
    queue.add([2, 3, 1])
    assert queue.take() == [1, 2, 3]
    taker = run_in_thread(lambda: queue.take())
    queue.close()
    taker.join(TIMEOUT)
    assert not taker.is_alive() and queue.take() is None
